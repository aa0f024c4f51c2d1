-- prefix, id, its time (ms) and number, fields of the hash (JSON list), items (JSON list of job ids), label, label...
-- Puts a done batch back, its items counted as their jobs are now: one that did not come back, or goes on, counts as failed. Returns 1,
-- or 0 when there is a batch, or a tombstone, of this id.
local id = ARGV[2]
local key = batch_key(id)
if redis.call('EXISTS', key, P .. ':tombstone:' .. id) > 0 then return 0 end
local fields = cjson.decode(ARGV[5])
for i = 1, #fields, 2 do
  redis.call('HSET', key, fields[i], fields[i + 1])
end
for _, job in ipairs(cjson.decode(ARGV[6])) do
  local v = redis.call('HMGET', job_key(job), 'state', 'batch')
  local state = v[2] == id and DONE[v[1]] and v[1] or 'failed'
  redis.call('RPUSH', key .. ':items', job)
  redis.call('HINCRBY', key, 'c:' .. state, 1)
end
redis.call('ZADD', P .. ':ix:batches', 0, id)
for i = 7, #ARGV do
  index(id, 'batch-label', ARGV[i])
end
index(id, 'batch-state', redis.call('HGET', key, 'state'))
settle(id, now())
remember(tonumber(ARGV[3]), tonumber(ARGV[4]))
return 1
