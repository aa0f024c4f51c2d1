-- Batches. A batch's hash: owner, spec, total, made, cap, budget, bell, labels, deadline, sources, formats, options, created, state, `t:<state>`,
-- `c:<state>` (items by state), stopped (why no item is started any more), sweep ('1' while items wait to be canceled), retry_at (number of
-- the next item to look at while the batch is tried again). Beside it: `:items` (list of job ids by number), `:waiting` (sorted set of
-- items whose turn has not come, by turn), `:out` (set of items that were rung for and are not done).

local function todo(batch, t) redis.call('ZADD', P .. ':batches:todo', t, batch) end

-- Rings for items while there is room. The message reaches the broker's list in this step; one that is lost is rung again by the reaper.
local function release(batch, t)
  local key = batch_key(batch)
  local v = redis.call('HMGET', key, 'stopped', 'cap', 'bell')
  if v[1] then return end
  local room = tonumber(v[2]) - redis.call('SCARD', key .. ':out')
  while room > 0 do
    local id = redis.call('ZPOPMIN', key .. ':waiting')[1]
    if not id then return end
    redis.call('SADD', key .. ':out', id)
    redis.call('ZADD', P .. ':queued:batches', t, id)
    if v[3] ~= '' then redis.pcall('LPUSH', BATCHES_QUEUE, (string.gsub(v[3], JOB_ID_IN_BELL, id))) end
    room = room - 1
  end
end

-- The batch's state follows from its counts and from what was asked of it.
local function settle(batch, t)
  local key = batch_key(batch)
  local v = redis.call('HMGET', key, 'state', 'total', 'made', 'stopped', 'retry_at', 'c:queued', 'c:succeeded', 'c:failed', 'c:canceled', 'c:expired')
  local total, made = tonumber(v[2]), tonumber(v[3])
  local queued, succeeded, failed, canceled, expired =
    tonumber(v[6] or 0), tonumber(v[7] or 0), tonumber(v[8] or 0), tonumber(v[9] or 0), tonumber(v[10] or 0)
  local to
  if succeeded + failed + canceled + expired == total and not v[5] then
    if v[4] == 'canceled_by_user' and canceled > 0 then to = 'canceled'
    elseif failed > 0 then to = 'failed'
    elseif expired > 0 then to = 'expired'
    elseif canceled > 0 then to = 'canceled'
    else to = 'succeeded' end
  elseif v[4] == 'canceled_by_user' then to = 'canceling'
  elseif queued + total - made == total then to = 'queued'
  else to = 'running' end
  if to == v[1] then return end
  redis.call('HSET', key, 'state', to, 't:' .. to, t)
  if v[1] then unindex(batch, 'batch-state', v[1]) end
  index(batch, 'batch-state', to)
  if DONE[to] then redis.call('ZADD', P .. ':unarchived:batches', t, batch) end
end

tally = function(batch, id, from, to, t)
  local key = batch_key(batch)
  redis.call('HINCRBY', key, 'c:' .. from, -1)
  local count = redis.call('HINCRBY', key, 'c:' .. to, 1)
  if DONE[to] then
    redis.call('SREM', key .. ':out', id)
    redis.call('ZREM', key .. ':waiting', id)
  elseif DONE[from] then
    -- Whoever wants an item again wants the batch to go on.
    if redis.call('HEXISTS', key, 'sweep') == 0 then redis.call('HDEL', key, 'stopped') end
    redis.call('ZADD', key .. ':waiting', redis.call('HGET', job_key(id), 'turn'), id)
  end
  if to == 'failed' then
    local v = redis.call('HMGET', key, 'budget', 'stopped', 'retry_at')
    if v[1] ~= '' and count > tonumber(v[1]) and not v[2] and not v[3] then
      redis.call('HSET', key, 'stopped', 'failure_budget_spent', 'sweep', 1)
      todo(batch, t)
    end
  end
  settle(batch, t)
  release(batch, t)
end
