-- prefix, token. Lets another process lead at once.
if redis.call('GET', P .. ':reaper') == ARGV[2] then redis.call('DEL', P .. ':reaper') end
return 1
