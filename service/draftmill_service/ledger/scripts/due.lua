-- prefix, sorted set of jobs to ring for, key of the broker's list, age (ms) after which a doorbell counts as unheard, most ids to return.
-- Returns ids of queued jobs to ring for, and notes that they rang. A busy worker leaves its messages in the list, so no more
-- than (queued jobs - messages) can have lost theirs: the list never grows beyond one message per queued job by this.
local t = now()
local missing = redis.call('ZCARD', P .. ':' .. ARGV[2]) - redis.call('LLEN', ARGV[3])
if missing <= 0 then return {} end
local ids = redis.call('ZRANGEBYSCORE', P .. ':' .. ARGV[2], '-inf', t - tonumber(ARGV[4]), 'LIMIT', 0, math.min(missing, tonumber(ARGV[5])))
for _, id in ipairs(ids) do
  redis.call('ZADD', P .. ':' .. ARGV[2], t, id)
end
return ids
