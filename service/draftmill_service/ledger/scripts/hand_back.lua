-- prefix, id, fence. Returns 1, or 0 for a stale holder. The attempt is interrupted, which does not count as lost.
local id = ARGV[2]
local state = held(id, ARGV[3])
if not state then
  local v = redis.call('HMGET', job_key(id), 'fence', 'attempt')
  local outcome = v[2] and redis.call('HGET', job_key(id), 'a:' .. v[2] .. ':outcome')
  return (v[1] == ARGV[3] and outcome == 'interrupted') and 1 or 0
end
local t = now()
end_attempt(id, 'interrupted', t)
if state == 'canceling' then
  enter(id, 'canceled', t, 'canceled_by_user')
elseif past_deadline(id, t) then
  enter(id, 'expired', t, 'deadline_exceeded')
else
  enter(id, 'queued', t)
end
return 1
