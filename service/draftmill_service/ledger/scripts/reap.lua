-- prefix, attempts that may be lost, most jobs to look at. Returns four lists of ids: queued again, failed, canceled, expired.
local limit = tonumber(ARGV[3])
local t = now()
local queued, failed, canceled, expired = {}, {}, {}, {}

for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. ':leases', '-inf', t, 'LIMIT', 0, limit)) do
  local state = redis.call('HGET', job_key(id), 'state')
  end_attempt(id, 'lost', t)
  if state == 'canceling' then
    enter(id, 'canceled', t, 'canceled_by_user')
    table.insert(canceled, id)
  elseif past_deadline(id, t) then
    enter(id, 'expired', t, 'deadline_exceeded')
    table.insert(expired, id)
  elseif redis.call('HINCRBY', job_key(id), 'lost', 1) >= tonumber(ARGV[2]) then
    enter(id, 'failed', t, 'worker_lost')
    table.insert(failed, id)
  else
    enter(id, 'queued', t)
    table.insert(queued, id)
  end
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. ':deadlines', '-inf', t, 'LIMIT', 0, limit)) do
  if redis.call('HGET', job_key(id), 'state') == 'queued' then
    enter(id, 'expired', t, 'deadline_exceeded')
    table.insert(expired, id)
  else
    -- A holder learns it from its next renewal; if it is dead, its lease says so above.
    redis.call('ZREM', P .. ':deadlines', id)
  end
end
return { queued, failed, canceled, expired }
