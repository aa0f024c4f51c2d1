-- prefix, id, fence, stage, state, progress (JSON or ''). Returns 1, or 0 for a stale holder.
local id, stage, state = ARGV[2], ARGV[4], ARGV[5]
if not held(id, ARGV[3]) then return 0 end
local key, t = job_key(id), now()
local attempt = redis.call('HGET', key, 'attempt')
local field = 'a:' .. attempt .. ':' .. stage .. ':'
redis.call('HSET', key, field .. 'state', state)
if state ~= 'pending' then redis.call('HSETNX', key, field .. 'started', t) end
if state ~= 'pending' and state ~= 'running' then redis.call('HSET', key, field .. 'ended', t) end
if ARGV[6] ~= '' then redis.call('HSET', key, field .. 'progress', ARGV[6]) end
emit(id, 'stage', cjson.encode({ attempt = tonumber(attempt), stage = stage, state = state }))
return 1
