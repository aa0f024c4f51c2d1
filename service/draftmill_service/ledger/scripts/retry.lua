-- prefix, id. Returns the state before, or nothing for an unknown job. The attempts stay; the revision is resolved anew, and a
-- deadline that has passed no longer binds.
local id = ARGV[2]
local key = job_key(id)
local state = redis.call('HGET', key, 'state')
if not state or not DONE[state] or not legal(state, 'queued') then return state end
local t = now()
local family = redis.call('HGET', key, 'family')
if family then unindex(id, 'family', family) end
redis.call('HDEL', key, 'reason', 'problem', 'summary', 'cached', 'resolved', 'family', 'asked')
redis.call('HSET', key, 'lost', 0)
if past_deadline(id, t) then
  redis.call('HDEL', key, 'deadline')
else
  local deadline = redis.call('HGET', key, 'deadline')
  if deadline then redis.call('ZADD', P .. ':deadlines', deadline, id) end
end
enter(id, 'queued', t)
-- The caller rings; the reaper need not at once.
redis.call('ZADD', P .. ':queued', t, id)
return state
