-- prefix, machine, id, fence, stage, how many, device, device... (those that will do, in the order they are taken).
-- Returns {'granted', device...}, {'waiting', place from 1}, or nothing for a stale holder. Devices belong to a claim and are free once
-- nobody holds that claim: whatever ends an attempt needs to know nothing of devices.
-- All or nothing, so that nobody waits with a device in hand; and in order: what an earlier request could use is not given to a later
-- one, so that a request for two is not passed by requests for one for ever.
local machine, id, fence, stage, count = ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
if not held(id, fence) then return false end
local taken_key, line_key = P .. ':devices:' .. machine, P .. ':devices:' .. machine .. ':line'
local me = id .. ':' .. fence .. ':' .. stage
local request = me .. '|' .. count .. '|' .. table.concat(ARGV, ',', 7)

local function gone(owner)
  local other, its_fence = string.match(owner, '^([^:]+):([^:]+):')
  return not held(other, its_fence) or (other == id and owner ~= me)
end

local taken, mine = {}, {}
local flat = redis.call('HGETALL', taken_key)
for i = 1, #flat, 2 do
  if gone(flat[i + 1]) then
    redis.call('HDEL', taken_key, flat[i])
  else
    taken[flat[i]] = true
    if flat[i + 1] == me then table.insert(mine, flat[i]) end
  end
end
if #mine > 0 then
  table.sort(mine)
  return { 'granted', unpack(mine) }
end

if not redis.call('ZSCORE', line_key, request) then redis.call('ZADD', line_key, redis.call('INCR', line_key .. ':ticket'), request) end

-- The first `wanted` of the devices that are free, and whether there are so many.
local function choose(devices, wanted)
  local chosen = {}
  for _, device in ipairs(devices) do
    if not taken[device] and #chosen < wanted then table.insert(chosen, device) end
  end
  return chosen, #chosen == wanted
end

local useful = {}
for i = 7, #ARGV do
  useful[ARGV[i]] = true
end
local place = 1
for _, waiting in ipairs(redis.call('ZRANGE', line_key, 0, -1)) do
  local owner, wanted, list = string.match(waiting, '^([^|]+)|(%d+)|(.*)$')
  local devices, rival = {}, false
  for device in string.gmatch(list, '[^,]+') do
    table.insert(devices, device)
    rival = rival or useful[device]
  end
  local chosen, enough = choose(devices, tonumber(wanted))
  if waiting == request then
    if not enough then break end
    redis.call('ZREM', line_key, request)
    for _, device in ipairs(chosen) do
      redis.call('HSET', taken_key, device, me)
    end
    table.sort(chosen)
    local key = job_key(id)
    local field = 'a:' .. redis.call('HGET', key, 'attempt') .. ':' .. stage .. ':'
    redis.call('HDEL', key, field .. 'waiting')
    redis.call('HSET', key, field .. 'devices', cjson.encode(chosen))
    return { 'granted', unpack(chosen) }
  end
  if owner == me or gone(owner) then
    redis.call('ZREM', line_key, waiting)
  else
    if rival then place = place + 1 end
    for _, device in ipairs(enough and chosen or devices) do
      taken[device] = true
    end
  end
end

local key = job_key(id)
local attempt = redis.call('HGET', key, 'attempt')
local field = 'a:' .. attempt .. ':' .. stage .. ':'
local waits = '{"place":' .. place .. ',"devices":' .. count .. '}'
if redis.call('HGET', key, field .. 'waiting') ~= waits then
  redis.call('HSET', key, field .. 'state', 'pending', field .. 'waiting', waits)
  emit(id, 'stage', '{"attempt":' .. attempt .. ',"stage":"' .. stage .. '","state":"pending","waiting":' .. waits .. '}')
end
return { 'waiting', place }
