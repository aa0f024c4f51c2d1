-- prefix, ids wanted, before which id ('' for the newest), most ids to look at, index key, index key...
-- Newest first, jobs that are in every index. Walks the smallest one. Returns {ids, where to go on or ''}.
local wanted, budget = tonumber(ARGV[2]), tonumber(ARGV[4])
local smallest, least = 5, nil
for i = 5, #ARGV do
  local size = redis.call('ZCARD', ARGV[i])
  if not least or size < least then smallest, least = i, size end
end
local at = ARGV[3] == '' and '+' or '(' .. ARGV[3]
local found, looked = {}, 0
while looked < budget and #found < wanted do
  local ids = redis.call('ZREVRANGEBYLEX', ARGV[smallest], at, '-', 'LIMIT', 0, math.min(200, budget - looked))
  if #ids == 0 then return { found, '' } end
  for _, id in ipairs(ids) do
    looked = looked + 1
    local all = true
    for i = 5, #ARGV do
      if i ~= smallest and not redis.call('ZSCORE', ARGV[i], id) then
        all = false
        break
      end
    end
    if all then table.insert(found, id) end
    at = '(' .. id
    if #found == wanted then break end
  end
end
return { found, string.sub(at, 2) }
