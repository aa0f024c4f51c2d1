-- prefix, id, fence, stage, progress (JSON). Returns 1, or 0 for a stale holder.
local id, stage, progress = ARGV[2], ARGV[4], ARGV[5]
if not held(id, ARGV[3]) then return 0 end
local key = job_key(id)
local attempt = redis.call('HGET', key, 'attempt')
redis.call('HSET', key, 'a:' .. attempt .. ':' .. stage .. ':progress', progress)
emit(id, 'progress', '{"attempt":' .. attempt .. ',"stage":"' .. stage .. '","progress":' .. progress .. '}')
return 1
