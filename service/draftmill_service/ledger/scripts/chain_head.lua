-- prefix, writer, sequence, sha256. Returns 1 when this is the writer's head now, 0 when the ledger holds one that cannot lie before it:
-- a later one, or another of the same number.
local key = P .. ':chains'
local known = redis.call('HGET', key, ARGV[2])
if known then
  local sequence, sha256 = string.match(known, '^(%d+):(%x+)$')
  if tonumber(sequence) > tonumber(ARGV[3]) or (sequence == ARGV[3] and sha256 ~= ARGV[4]) then return 0 end
end
redis.call('HSET', key, ARGV[2], ARGV[3] .. ':' .. ARGV[4])
return 1
