-- prefix, name, what it says of itself (JSON), life (ms). A worker is there, until its record lapses. Returns 1.
local name, life = ARGV[2], tonumber(ARGV[4])
local key, t = P .. ':worker:' .. name, now()
redis.call('HSET', key, 'about', ARGV[3])
redis.call('HSETNX', key, 'since', t)
redis.call('PEXPIRE', key, life)
redis.call('ZREMRANGEBYSCORE', P .. ':workers', '-inf', t)
redis.call('ZADD', P .. ':workers', t + life, name)
return 1
