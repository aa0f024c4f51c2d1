-- prefix, id, number of the first item, how many labels, label..., then for each item: randomness, spec, format, turn.
-- Makes jobs of the items, unless somebody has done it by now: what is sent twice is made once. Returns 1 or 0.
local id, first = ARGV[2], tonumber(ARGV[3])
local key = batch_key(id)
local v = redis.call('HMGET', key, 'made', 'owner', 'deadline')
if tonumber(v[1]) ~= first then return 0 end
local labels = {}
for i = 5, 4 + tonumber(ARGV[4]) do
  table.insert(labels, ARGV[i])
end
local t, made = now(), 0
for i = 5 + #labels, #ARGV, 4 do
  local job = mint('j', t, ARGV[i])
  make_job(job, t, v[2], ARGV[i + 1], ARGV[i + 2], v[3], labels)
  redis.call('HSET', job_key(job), 'batch', id, 'turn', ARGV[i + 3])
  redis.call('RPUSH', key .. ':items', job)
  redis.call('ZADD', key .. ':waiting', ARGV[i + 3], job)
  made = made + 1
end
redis.call('HINCRBY', key, 'made', made)
redis.call('HINCRBY', key, 'c:queued', made)
todo(id, t)
settle(id, t)
release(id, t)
return 1
