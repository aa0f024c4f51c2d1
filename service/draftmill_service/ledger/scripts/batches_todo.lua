-- prefix, age (ms), most ids. Batches with something left to do that nobody has done a step of for so long.
return redis.call('ZRANGEBYSCORE', P .. ':batches:todo', '-inf', now() - tonumber(ARGV[2]), 'LIMIT', 0, tonumber(ARGV[3]))
