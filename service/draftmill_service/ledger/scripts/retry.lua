-- prefix, id. Returns the state before, nothing for an unknown job, or 'past' where its deadline has passed.
local id = ARGV[2]
local key = job_key(id)
local state = redis.call('HGET', key, 'state')
local t = now()
if state and DONE[state] and state ~= 'succeeded' and past_deadline(id, t) then return 'past' end
if not state or not DONE[state] or not legal(state, 'queued') then return state end
requeue(id, t)
-- The caller rings; the reaper need not at once. An item of a batch is not there: it waits for its turn.
redis.call('ZADD', P .. ':queued', 'XX', t, id)
return state
