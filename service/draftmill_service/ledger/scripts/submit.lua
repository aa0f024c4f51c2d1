-- prefix, idempotency key, its life (ms), digest of the spec, owner, spec, format, deadline (ms or ''), randomness, the broker's
-- list, the message for it, what stands for the id in the message, label, label...
-- Returns {'created', id, ms, place in line}, {'same', id}, {'mismatch'} or, for a deadline that has passed, {'past'}.
local idem = P .. ':idem:' .. ARGV[2]
local before = redis.call('HMGET', idem, 'job', 'digest')
if before[1] and redis.call('EXISTS', job_key(before[1])) == 1 then
  if before[2] ~= ARGV[4] then return { 'mismatch' } end
  return { 'same', before[1] }
end

local t = now()
if ARGV[8] ~= '' and tonumber(ARGV[8]) <= t then return { 'past' } end
local id = mint('j', t, ARGV[9])
make_job(id, t, ARGV[5], ARGV[6], ARGV[7], ARGV[8], { unpack(ARGV, 13) })
redis.call('ZADD', P .. ':queued', t, id)
redis.call('ZADD', P .. ':line', t, id)
redis.call('HSET', idem, 'job', id, 'digest', ARGV[4])
redis.call('PEXPIRE', idem, ARGV[3])
-- A list in the way of the message is no reason to lose the job: the reaper rings.
if ARGV[11] ~= '' then redis.pcall('LPUSH', ARGV[10], (string.gsub(ARGV[11], ARGV[12], id))) end
return { 'created', id, t, redis.call('ZRANK', P .. ':line', id) + 1 }
