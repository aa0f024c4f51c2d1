-- Functions shared by every script. The loader puts TRANSITIONS, DONE, STAGES, PROBLEMS and MAX_EVENTS before this, made from
-- the Python tables, and one script's body after it. ARGV[1] is the key prefix, everywhere.

local P = ARGV[1]

-- Redis' clock is the only one: milliseconds since 1970.
local function now()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

local function job_key(id) return P .. ':job:' .. id end

local function emit(id, kind, json)
  redis.call('XADD', P .. ':events:' .. id, 'MAXLEN', '~', MAX_EVENTS, '*', 'kind', kind, 'data', json)
end

local function index(id, dimension, value) redis.call('ZADD', P .. ':ix:' .. dimension .. ':' .. value, 0, id) end

local function unindex(id, dimension, value) redis.call('ZREM', P .. ':ix:' .. dimension .. ':' .. value, id) end

local function legal(from, to) return TRANSITIONS[from] ~= nil and TRANSITIONS[from][to] == true end

local function past_deadline(id, t)
  local deadline = redis.call('HGET', job_key(id), 'deadline')
  return deadline and tonumber(deadline) <= t
end

-- The one way a job changes state. Callers decide on the state they read in the same script, so an illegal step is a fault of
-- the script; it stops before the first write.
local function enter(id, to, t, reason)
  local key = job_key(id)
  local from = redis.call('HGET', key, 'state')
  if not legal(from, to) then
    error('illegal transition of ' .. id .. ' from ' .. tostring(from) .. ' to ' .. to)
  end
  redis.call('HSET', key, 'state', to, 't:' .. to, t)
  unindex(id, 'state', from)
  index(id, 'state', to)
  if to == 'queued' then redis.call('ZADD', P .. ':queued', 0, id) else redis.call('ZREM', P .. ':queued', id) end
  if to ~= 'running' and to ~= 'canceling' then redis.call('ZREM', P .. ':leases', id) end
  if DONE[to] then redis.call('ZREM', P .. ':deadlines', id) end
  local data = { state = to, attempt = tonumber(redis.call('HGET', key, 'attempt')) }
  if reason and reason ~= '' then
    data.reason = reason
    redis.call('HSET', key, 'reason', reason)
    if PROBLEMS[reason] then redis.call('HSETNX', key, 'problem', PROBLEMS[reason]) end
  end
  emit(id, 'state', cjson.encode(data))
end

-- Closes the attempt and what still ran in it. Comes before `enter`: the state event is the last of an ending.
local STAGE_END = {
  succeeded = 'succeeded', failed = 'failed', canceled = 'canceled', expired = 'canceled', lost = 'interrupted', interrupted = 'interrupted',
}
local function end_attempt(id, outcome, t)
  local key = job_key(id)
  local attempt = redis.call('HGET', key, 'attempt')
  local at = 'a:' .. attempt .. ':'
  redis.call('HSET', key, at .. 'outcome', outcome, at .. 'ended', t)
  for _, stage in ipairs(STAGES) do
    local field = at .. stage .. ':'
    local state = redis.call('HGET', key, field .. 'state')
    -- Pending: it waits for a device.
    if state == 'running' or state == 'pending' then
      redis.call('HSET', key, field .. 'state', STAGE_END[outcome], field .. 'ended', t)
      redis.call('HDEL', key, field .. 'waiting')
      emit(id, 'stage', cjson.encode({ attempt = tonumber(attempt), stage = stage, state = STAGE_END[outcome] }))
    end
  end
  emit(id, 'attempt', cjson.encode({ attempt = tonumber(attempt), outcome = outcome }))
end

-- State of a job whose holder shows this fence, or false when somebody else, or nobody, holds it.
local function held(id, fence)
  local v = redis.call('HMGET', job_key(id), 'fence', 'state')
  if v[1] == fence and (v[2] == 'running' or v[2] == 'canceling') then return v[2] end
  return false
end
