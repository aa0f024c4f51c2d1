-- prefix, id. Returns the state before, or nothing for an unknown job. Canceling twice is no conflict.
local id = ARGV[2]
local state = redis.call('HGET', job_key(id), 'state')
if state == 'queued' then
  enter(id, 'canceled', now(), 'canceled_by_user')
elseif state == 'running' then
  enter(id, 'canceling', now())
end
return state
