-- prefix, id, fence, outcome, reason, problem (JSON), summary (JSON), cached ('1' or '0'); '' where there is none.
-- Returns 1, also when this ending was recorded before, or 0 for a stale holder. Work that ended well after a cancel was asked
-- for is canceled: from canceling there is no other way but failure.
local id, outcome, reason = ARGV[2], ARGV[4], ARGV[5]
local key = job_key(id)
local state = held(id, ARGV[3])
if not state then
  local v = redis.call('HMGET', key, 'fence', 'state', 'asked')
  return (v[1] == ARGV[3] and DONE[v[2]] and v[3] == outcome) and 1 or 0
end
local to = outcome
if not legal(state, to) then
  to = state == 'canceling' and 'canceled' or nil
  if not to then return redis.error_reply('ILLEGAL a running job cannot end as ' .. outcome) end
  reason = 'canceled_by_user'
end
local t = now()
redis.call('HSET', key, 'asked', outcome)
if to == outcome then
  if ARGV[6] ~= '' then redis.call('HSET', key, 'problem', ARGV[6]) end
  if ARGV[7] ~= '' then redis.call('HSET', key, 'summary', ARGV[7]) end
  redis.call('HSET', key, 'cached', ARGV[8])
end
end_attempt(id, to, t)
enter(id, to, t, reason)
return 1
