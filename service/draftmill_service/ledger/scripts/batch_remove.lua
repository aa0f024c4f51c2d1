-- prefix, id, label, label... Removes a done batch and leaves a tombstone; its items are jobs of their own from then on. Returns 1, 0
-- when it is not done, or nothing for an unknown batch. One that was removed before is removed.
local id = ARGV[2]
local key = batch_key(id)
local state = redis.call('HGET', key, 'state')
if not state then
  if redis.call('EXISTS', P .. ':tombstone:' .. id) == 1 then return 1 end
  return false
end
if not DONE[state] then return 0 end
redis.call('ZREM', P .. ':ix:batches', id)
unindex(id, 'batch-state', state)
for i = 3, #ARGV do
  unindex(id, 'batch-label', ARGV[i])
end
redis.call('ZREM', P .. ':batches:todo', id)
redis.call('ZREM', P .. ':unarchived:batches', id)
redis.call('DEL', key, key .. ':items', key .. ':waiting', key .. ':out')
redis.call('SET', P .. ':tombstone:' .. id, now())
return 1
