-- prefix, ids wanted, behind which id ('' for the first), most ids to look at, 'newest' or 'oldest', index key, index key...
-- Jobs that are in every index, the newest or the oldest first. Walks the smallest index. Returns {ids, where to go on or ''}.
local wanted, budget, oldest = tonumber(ARGV[2]), tonumber(ARGV[4]), ARGV[5] == 'oldest'
local smallest, least = 6, nil
for i = 6, #ARGV do
  local size = redis.call('ZCARD', ARGV[i])
  if not least or size < least then smallest, least = i, size end
end
local at = ARGV[3] == '' and (oldest and '-' or '+') or '(' .. ARGV[3]
local range, last = oldest and 'ZRANGEBYLEX' or 'ZREVRANGEBYLEX', oldest and '+' or '-'
local found, looked = {}, 0
while looked < budget and #found < wanted do
  local ids = redis.call(range, ARGV[smallest], at, last, 'LIMIT', 0, math.min(200, budget - looked))
  if #ids == 0 then return { found, '' } end
  for _, id in ipairs(ids) do
    looked = looked + 1
    local all = true
    for i = 6, #ARGV do
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
