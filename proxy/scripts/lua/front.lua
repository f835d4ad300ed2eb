-- Removes due members from some keys, and voids the deadlines of absent members, in front of a request that is
-- forwarded unchanged, in the same write. The script is short, because the server reads it each time. See
-- shared/void.lua for void deadlines. Voiding does not change the index: at worst the index then has too early a
-- deadline, which the sweeper corrects. Nothing is removed if the database has rules for events.
-- Alone: nothing is put in front of it or behind it, except at a cluster node; `call` is redis.call
-- KEYS: the index, the rules for events, then each key followed by its shadow
-- ARGV: maximum number of deadlines to check for each key; maximum number of those due, now or soon; how many ms ahead
--   "soon" is; in how many of the keys, from the first on, to void deadlines
-- Result: the most deadlines checked for a key; the most due now or soon for a key; how many members were removed
-- Complexity: O(k + n log n) for k keys and n deadlines in all (O(n m) for a list of m)
local looks = {set = 'sismember', hash = 'hexists', zset = 'zscore', list = 'lpos'}
local removes = {set = 'srem', hash = 'hdel', zset = 'zrem'}
local time, most, soon, gone = call('time'), 0, 0, 0
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for place = 3, #KEYS, 2 do
  local key, shadow = KEYS[place], KEYS[place + 1]
  local near = redis.pcall('zrangebyscore', shadow, '(0', now + ARGV[3], 'withscores', 'limit', 0, ARGV[2])
  local kind = near[1] and call('type', key).ok
  if near[1] then
    soon = math.max(soon, #near / 2)
    local due = tonumber(near[2]) <= now and call('exists', KEYS[2]) == 0
    for member = 1, due and #near or 0, 2 do
      if tonumber(near[member + 1]) > now then break end
      if removes[kind] then gone = gone + call(removes[kind], key, near[member])
      elseif kind == 'list' then gone = gone + math.min(1, call('lrem', key, 0, near[member])) end
      call('zrem', shadow, near[member])
    end
    local left = due and redis.pcall('zrange', shadow, 0, 0, 'withscores')
    if left and not left[1] then redis.pcall('zrem', KEYS[1], key)
    elseif left and tonumber(left[2]) > 0 then redis.pcall('zadd', KEYS[1], left[2], key) end
  end
  if place < 3 + 2 * ARGV[4] then
    local live = redis.pcall('zrangebyscore', shadow, '(0', '+inf', 'withscores', 'limit', 0, ARGV[1])
    most = math.max(most, live[1] and #live / 2 or 0)
    kind = live[1] and (kind or call('type', key).ok)
    local look = looks[kind]
    for member = 1, look and #live or 0, 2 do
      local there = call(look, key, live[member])
      if not there or there == 0 and kind ~= 'list' then
        local voided = redis.pcall('zadd', shadow, '-' .. live[member + 1], live[member])
        if type(voided) ~= 'number' then call('zrem', shadow, live[member]) end
      end
    end
    if live[1] and not look then
      call('unlink', shadow)
      redis.pcall('zrem', KEYS[1], key)
    end
  end
end
return {most, soon, gone}
