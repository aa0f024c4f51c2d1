-- prefix, machine, id, fence. Frees what the claim has of the machine's devices, and gives up its place in line. Also for a stale holder:
-- nobody else has devices under its fence. Returns how many were freed.
local taken_key, line_key = P .. ':devices:' .. ARGV[2], P .. ':devices:' .. ARGV[2] .. ':line'
local me = ARGV[3] .. ':' .. ARGV[4] .. ':'
local function is_mine(owner) return string.sub(owner, 1, #me) == me end
local freed = 0
local flat = redis.call('HGETALL', taken_key)
for i = 1, #flat, 2 do
  if is_mine(flat[i + 1]) then freed = freed + redis.call('HDEL', taken_key, flat[i]) end
end
for _, waiting in ipairs(redis.call('ZRANGE', line_key, 0, -1)) do
  if is_mine(waiting) then redis.call('ZREM', line_key, waiting) end
end
return freed
