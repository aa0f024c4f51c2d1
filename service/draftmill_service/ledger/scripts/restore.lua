-- prefix, id, its time (ms) and number, fields of the hash (JSON list), events (JSON list of {id, kind, data}), label, label...
-- Puts a done job back as it was. Returns 1, or 0 when there is a job, or a tombstone, of this id.
local id = ARGV[2]
local key = job_key(id)
if redis.call('EXISTS', key, P .. ':tombstone:' .. id) > 0 then return 0 end
local fields = cjson.decode(ARGV[5])
for i = 1, #fields, 2 do
  redis.call('HSET', key, fields[i], fields[i + 1])
end
local v = redis.call('HMGET', key, 'state', 'format', 'family')
redis.call('ZADD', P .. ':ix:all', 0, id)
index(id, 'state', v[1])
index(id, 'format', v[2])
if v[3] then index(id, 'family', v[3]) end
for i = 7, #ARGV do
  index(id, 'label', ARGV[i])
end
for _, event in ipairs(cjson.decode(ARGV[6])) do
  redis.call('XADD', P .. ':events:' .. id, event[1], 'kind', event[2], 'data', event[3])
end
remember(tonumber(ARGV[3]), tonumber(ARGV[4]))
return 1
