-- prefix, idempotency key, its life (ms), digest of the spec, owner, spec, format, deadline (ms or ''), randomness, the broker's
-- list, the message for it, what stands for the id in the message, label, label...
-- Returns {'created', id, ms}, {'same', id}, {'mismatch'} or, for a deadline that has passed, {'past'}. The id's time part comes from Redis' clock and its next four
-- digits from a counter, so ids sort in the order of submission even within one millisecond or when the clock steps back.
local idem = P .. ':idem:' .. ARGV[2]
local before = redis.call('HMGET', idem, 'job', 'digest')
if before[1] and redis.call('EXISTS', job_key(before[1])) == 1 then
  if before[2] ~= ARGV[4] then return { 'mismatch' } end
  return { 'same', before[1] }
end

local t = now()
if ARGV[8] ~= '' and tonumber(ARGV[8]) <= t then return { 'past' } end
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
local id = 'j' .. base32(ms, 10) .. base32(seq, 4) .. ARGV[9]

redis.call('HSET', job_key(id), 'state', 'queued', 'owner', ARGV[5], 'spec', ARGV[6], 'format', ARGV[7], 'created', t,
  't:queued', t, 'attempt', 0, 'fence', 0, 'lost', 0)
redis.call('ZADD', P .. ':ix:all', 0, id)
index(id, 'state', 'queued')
index(id, 'format', ARGV[7])
for i = 13, #ARGV do
  index(id, 'label', ARGV[i])
end
redis.call('ZADD', P .. ':queued', t, id)
if ARGV[8] ~= '' then
  redis.call('HSET', job_key(id), 'deadline', ARGV[8])
  redis.call('ZADD', P .. ':deadlines', ARGV[8], id)
end
redis.call('HSET', idem, 'job', id, 'digest', ARGV[4])
redis.call('PEXPIRE', idem, ARGV[3])
emit(id, 'state', cjson.encode({ state = 'queued', attempt = 0 }))
-- A list in the way of the message is no reason to lose the job: the reaper rings.
if ARGV[11] ~= '' then redis.pcall('LPUSH', ARGV[10], (string.gsub(ARGV[11], ARGV[12], id))) end
return { 'created', id, t }
