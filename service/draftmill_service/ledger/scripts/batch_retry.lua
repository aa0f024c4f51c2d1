-- prefix, id. Items that failed or were canceled are to be queued again, by batch_step. Returns 'yes', nothing for an unknown batch, or why not: 'busy'
-- while it is made or stopped, 'nothing' without such items, 'past' after the deadline.
local key = batch_key(ARGV[2])
local v = redis.call('HMGET', key, 'state', 'made', 'total', 'sweep', 'deadline', 'c:failed', 'c:canceled')
if not v[1] then return false end
local t = now()
if v[1] == 'canceling' or v[2] ~= v[3] or v[4] then return 'busy' end
if v[5] ~= '' and tonumber(v[5]) <= t then return 'past' end
if tonumber(v[6] or 0) + tonumber(v[7] or 0) == 0 then return 'nothing' end
redis.call('HDEL', key, 'stopped')
redis.call('HSET', key, 'retry_at', 0)
todo(ARGV[2], t)
settle(ARGV[2], t)
return 'yes'
