-- prefix, id, most items to look at. A step of what is left to do for a batch: {'expand', number of the first item to make}, {'more'} after
-- a step that is not the last, or {'done'}. Two that step at once do no harm.
local id, most = ARGV[2], tonumber(ARGV[3])
local key = batch_key(id)
local v = redis.call('HMGET', key, 'made', 'total', 'sweep', 'retry_at', 'stopped')
local t = now()
if not v[1] then
  redis.call('ZREM', P .. ':batches:todo', id)
  return { 'done' }
end
todo(id, t)
if tonumber(v[1]) < tonumber(v[2]) then return { 'expand', tonumber(v[1]) } end

if v[3] then
  local by_user = v[5] == 'canceled_by_user'
  local reason = by_user and 'canceled_by_user' or 'batch_stopped'
  local waiting = redis.call('ZRANGE', key .. ':waiting', 0, most - 1)
  for _, job in ipairs(waiting) do
    enter(job, 'canceled', t, reason)
  end
  if #waiting == most then return { 'more' } end
  for _, job in ipairs(redis.call('SMEMBERS', key .. ':out')) do
    local state = redis.call('HGET', job_key(job), 'state')
    if state == 'queued' then enter(job, 'canceled', t, reason) end
    -- What has spent its budget of failures lets those end that have begun.
    if state == 'running' and by_user then enter(job, 'canceling', t) end
  end
  redis.call('HDEL', key, 'sweep')
elseif v[4] then
  local at = tonumber(v[4])
  for _, job in ipairs(redis.call('LRANGE', key .. ':items', at, at + most - 1)) do
    local state = redis.call('HGET', job_key(job), 'state')
    if (state == 'failed' or state == 'canceled') and not past_deadline(job, t) then requeue(job, t) end
  end
  if at + most < tonumber(v[2]) then
    redis.call('HSET', key, 'retry_at', at + most)
    return { 'more' }
  end
  redis.call('HDEL', key, 'retry_at')
  settle(id, t)
end
redis.call('ZREM', P .. ':batches:todo', id)
return { 'done' }
