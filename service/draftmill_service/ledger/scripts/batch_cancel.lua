-- prefix, id. Returns the state before, or nothing for an unknown batch. batch_step does it; canceling twice is no conflict.
local key = batch_key(ARGV[2])
local state = redis.call('HGET', key, 'state')
if not state or DONE[state] then return state end
local t = now()
redis.call('HSET', key, 'stopped', 'canceled_by_user', 'sweep', 1)
redis.call('HDEL', key, 'retry_at')
todo(ARGV[2], t)
settle(ARGV[2], t)
return state
