-- prefix, token, life (ms). Returns 1 for the one process that leads, which renews by asking again.
local key = P .. ':reaper'
local holder = redis.call('GET', key)
if holder and holder ~= ARGV[2] then return 0 end
redis.call('SET', key, ARGV[2], 'PX', ARGV[3])
return 1
