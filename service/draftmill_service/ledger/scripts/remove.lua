-- prefix, id, label, label... Removes a done job and leaves a tombstone. Returns 1, 0 when it is not done, or nothing for an unknown job.
local id = ARGV[2]
local key = job_key(id)
local v = redis.call('HMGET', key, 'state', 'format', 'family')
if not v[1] then return false end
if not DONE[v[1]] then return 0 end
redis.call('ZREM', P .. ':ix:all', id)
unindex(id, 'state', v[1])
unindex(id, 'format', v[2])
if v[3] then unindex(id, 'family', v[3]) end
for i = 3, #ARGV do
  unindex(id, 'label', ARGV[i])
end
redis.call('DEL', key, P .. ':events:' .. id)
redis.call('SET', P .. ':tombstone:' .. id, now())
return 1
