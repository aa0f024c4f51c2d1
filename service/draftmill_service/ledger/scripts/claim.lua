-- prefix, id, worker, lease (ms), nonce. Returns the job's hash as it is after the claim, or nothing when there is nothing to do.
-- The nonce makes a second try after a lost reply find its own claim.
local id, worker, lease, nonce = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local key = job_key(id)
local v = redis.call('HMGET', key, 'state', 'nonce', 'batch')
if v[1] == 'running' and v[2] == nonce then return redis.call('HGETALL', key) end
if v[1] ~= 'queued' then return false end
-- An item whose turn in its batch has not come; the message is a stray.
if v[3] and not redis.call('ZSCORE', P .. ':queued:batches', id) then return false end
local t = now()
if past_deadline(id, t) then
  enter(id, 'expired', t, 'deadline_exceeded')
  return false
end
local attempt = redis.call('HINCRBY', key, 'attempt', 1)
redis.call('HINCRBY', key, 'fence', 1)
local at = 'a:' .. attempt .. ':'
redis.call('HSET', key, 'nonce', nonce, at .. 'worker', worker, at .. 'started', t)
enter(id, 'running', t)
redis.call('ZADD', P .. ':leases', t + lease, id)
emit(id, 'attempt', cjson.encode({ attempt = attempt, worker = worker }))
return redis.call('HGETALL', key)
