-- prefix, id, fence, resolved spec (JSON), family. Returns 1, or 0 for a stale holder.
local id = ARGV[2]
if not held(id, ARGV[3]) then return 0 end
local key = job_key(id)
local family = redis.call('HGET', key, 'family')
if family then unindex(id, 'family', family) end
redis.call('HSET', key, 'resolved', ARGV[4], 'family', ARGV[5])
index(id, 'family', ARGV[5])
return 1
