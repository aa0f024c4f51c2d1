-- prefix, list, id, mark. Takes a job or a batch off the list of what is to be archived, unless it ended again since this mark was read.
local key = P .. ':' .. ARGV[2]
if redis.call('ZSCORE', key, ARGV[3]) == ARGV[4] then redis.call('ZREM', key, ARGV[3]) end
return 1
