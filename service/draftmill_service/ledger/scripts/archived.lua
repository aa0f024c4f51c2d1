-- prefix, id, mark. Takes the job off the list of what is to be archived, unless it ended again since this mark was read.
local key = P .. ':unarchived'
if redis.call('ZSCORE', key, ARGV[2]) == ARGV[3] then redis.call('ZREM', key, ARGV[2]) end
return 1
