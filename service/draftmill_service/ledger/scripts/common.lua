-- Functions shared by every script. The loader puts TRANSITIONS, DONE, STAGES, PROBLEMS and MAX_EVENTS before this, made from
-- the Python tables, and one script's body after it. ARGV[1] is the key prefix, everywhere.

local P = ARGV[1]

-- Redis' clock is the only one: milliseconds since 1970.
local function now()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

local function job_key(id) return P .. ':job:' .. id end

local function batch_key(id) return P .. ':batch:' .. id end

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

-- Counts a transition in the job's batch. batching.lua has it.
local tally

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
  local batch = redis.call('HGET', key, 'batch')
  -- An item of a batch that retention has removed goes on as a job of its own.
  if batch and redis.call('EXISTS', batch_key(batch)) == 0 then
    redis.call('HDEL', key, 'batch', 'turn')
    batch = false
  end
  local queued = batch and P .. ':queued:batches' or P .. ':queued'
  if to == 'queued' and not batch then redis.call('ZADD', P .. ':line', t, id) else redis.call('ZREM', P .. ':line', id) end
  -- An item that is tried again waits for its turn in the batch.
  if to == 'queued' and not (batch and DONE[from]) then redis.call('ZADD', queued, 0, id) else redis.call('ZREM', queued, id) end
  if to ~= 'running' and to ~= 'canceling' then redis.call('ZREM', P .. ':leases', id) end
  if DONE[to] then
    redis.call('ZREM', P .. ':deadlines', id)
    redis.call('ZADD', P .. ':unarchived', t, id)
  end
  local data = { state = to, attempt = tonumber(redis.call('HGET', key, 'attempt')) }
  if reason and reason ~= '' then
    data.reason = reason
    redis.call('HSET', key, 'reason', reason)
    if PROBLEMS[reason] then redis.call('HSETNX', key, 'problem', PROBLEMS[reason]) end
  end
  emit(id, 'state', cjson.encode(data))
  if batch then tally(batch, id, from, to, t) end
end

-- A failed or canceled job back to the queue. The attempts stay; the revision is resolved anew.
local function requeue(id, t)
  local key = job_key(id)
  local family = redis.call('HGET', key, 'family')
  if family then unindex(id, 'family', family) end
  redis.call('HDEL', key, 'reason', 'problem', 'summary', 'cached', 'resolved', 'family', 'asked')
  redis.call('HSET', key, 'lost', 0)
  local deadline = redis.call('HGET', key, 'deadline')
  if deadline then redis.call('ZADD', P .. ':deadlines', deadline, id) end
  enter(id, 'queued', t)
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

-- An id's time part comes from Redis' clock and its next four digits from a counter, so ids sort in the order of submission even
-- within one millisecond or when the clock steps back.
local function mint(letter, t, random)
  local last = redis.call('HMGET', P .. ':ids', 'ms', 'seq')
  local ms, seq = t, 0
  if last[1] and tonumber(last[1]) >= t then ms, seq = tonumber(last[1]), tonumber(last[2]) + 1 end
  redis.call('HSET', P .. ':ids', 'ms', ms, 'seq', seq)
  local DIGITS = '0123456789abcdefghjkmnpqrstvwxyz'
  local function base32(value, width)
    local out = {}
    for i = width, 1, -1 do
      local digit = value % 32
      out[i] = string.sub(DIGITS, digit + 1, digit + 1)
      value = (value - digit) / 32
    end
    return table.concat(out)
  end
  return letter .. base32(ms, 10) .. base32(seq, 4) .. random
end

-- Of a record that was put back: new ids must sort behind the old ones, whatever the clock says.
local function remember(ms, seq)
  local last = redis.call('HMGET', P .. ':ids', 'ms', 'seq')
  if not last[1] or tonumber(last[1]) < ms or (tonumber(last[1]) == ms and tonumber(last[2]) < seq) then
    redis.call('HSET', P .. ':ids', 'ms', ms, 'seq', seq)
  end
end

-- The record of a new job, which is queued; where it waits is for the caller to say. `deadline` (ms) may be ''.
local function make_job(id, t, owner, spec, format, deadline, labels)
  redis.call('HSET', job_key(id), 'state', 'queued', 'owner', owner, 'spec', spec, 'format', format, 'created', t, 't:queued', t,
    'attempt', 0, 'fence', 0, 'lost', 0)
  redis.call('ZADD', P .. ':ix:all', 0, id)
  index(id, 'state', 'queued')
  index(id, 'format', format)
  for _, label in ipairs(labels) do
    index(id, 'label', label)
  end
  if deadline ~= '' then
    redis.call('HSET', job_key(id), 'deadline', deadline)
    redis.call('ZADD', P .. ':deadlines', deadline, id)
  end
  emit(id, 'state', '{"state":"queued","attempt":0}')
end
