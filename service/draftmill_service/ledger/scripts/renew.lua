-- prefix, id, fence, lease (ms). Returns continue, cancel, expired or lost. A cancel or a passed deadline still renews: the
-- holder needs the time to stop its processes.
local state = held(ARGV[2], ARGV[3])
if not state then return 'lost' end
local t = now()
redis.call('ZADD', P .. ':leases', t + tonumber(ARGV[4]), ARGV[2])
if state == 'canceling' then return 'cancel' end
if past_deadline(ARGV[2], t) then return 'expired' end
return 'continue'
