-- prefix, id. Returns the spec to the first who asks, nothing to the others.
local key = P .. ':preflight:' .. ARGV[2]
if redis.call('HSETNX', key, 'taken', now()) == 0 then return false end
local spec = redis.call('HGET', key, 'spec')
if not spec then redis.call('DEL', key) end
return spec
