-- prefix, id. Returns the state before, nothing for an unknown job, or 'past' where its deadline has passed. The attempts stay;
-- the revision is resolved anew.
local id = ARGV[2]
local key = job_key(id)
local state = redis.call('HGET', key, 'state')
local t = now()
if state and DONE[state] and state ~= 'succeeded' and past_deadline(id, t) then return 'past' end
if not state or not DONE[state] or not legal(state, 'queued') then return state end
local family = redis.call('HGET', key, 'family')
if family then unindex(id, 'family', family) end
redis.call('HDEL', key, 'reason', 'problem', 'summary', 'cached', 'resolved', 'family', 'asked')
redis.call('HSET', key, 'lost', 0)
local deadline = redis.call('HGET', key, 'deadline')
if deadline then redis.call('ZADD', P .. ':deadlines', deadline, id) end
enter(id, 'queued', t)
-- The caller rings; the reaper need not at once.
redis.call('ZADD', P .. ':queued', t, id)
return state
