-- prefix, idempotency key, its life (ms), digest of the spec, owner, spec, items in all, most items out, failures allowed (or ''),
-- deadline (ms or ''), randomness, the message for an item, labels (JSON), sources, formats, options, label, label...
-- Returns {'created', id}, {'same', id}, {'mismatch'} or {'past'}. The items are made by batch_expand, step by step.
local idem = P .. ':idem:' .. ARGV[2]
local before = redis.call('HMGET', idem, 'batch', 'digest')
if before[1] and redis.call('EXISTS', batch_key(before[1])) == 1 then
  if before[2] ~= ARGV[4] then return { 'mismatch' } end
  return { 'same', before[1] }
end
local t = now()
if ARGV[10] ~= '' and tonumber(ARGV[10]) <= t then return { 'past' } end
local id = mint('s', t, ARGV[11])
redis.call('HSET', batch_key(id), 'owner', ARGV[5], 'spec', ARGV[6], 'total', ARGV[7], 'made', 0, 'cap', ARGV[8], 'budget', ARGV[9],
  'deadline', ARGV[10], 'bell', ARGV[12], 'labels', ARGV[13], 'sources', ARGV[14], 'formats', ARGV[15], 'options', ARGV[16], 'created', t)
redis.call('ZADD', P .. ':ix:batches', 0, id)
for i = 17, #ARGV do
  index(id, 'batch-label', ARGV[i])
end
settle(id, t)
todo(id, t)
redis.call('HSET', idem, 'batch', id, 'digest', ARGV[4])
redis.call('PEXPIRE', idem, ARGV[3])
return { 'created', id }
