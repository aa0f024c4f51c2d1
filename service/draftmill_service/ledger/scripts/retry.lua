-- prefix, id, idempotency key, its life (ms). Returns the state before, nothing for an unknown job, 'past' where its deadline has
-- passed, 'same' when this key retried the job before, 'mismatch' when it retried another.
local id, idem = ARGV[2], P .. ':idem:' .. ARGV[3]
local before = redis.call('HGET', idem, 'job')
if before then return before == id and 'same' or 'mismatch' end
local key = job_key(id)
local state = redis.call('HGET', key, 'state')
local t = now()
if state and DONE[state] and state ~= 'succeeded' and past_deadline(id, t) then return 'past' end
if not state or not DONE[state] or not legal(state, 'queued') then return state end
requeue(id, t)
redis.call('HSET', idem, 'job', id)
redis.call('PEXPIRE', idem, ARGV[4])
-- The caller rings; the reaper need not at once. An item of a batch is not there: it waits for its turn.
redis.call('ZADD', P .. ':queued', 'XX', t, id)
return state
