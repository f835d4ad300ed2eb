-- Removes due members, and void deadlines that have passed, from one key.
-- kind: the reply of TYPE; gone: whether all deadlines of the key are void; room: maximum number to remove; strict: as
-- in `lapse`.
-- walks: whether the caller will call again for the rest. Then a list with many due elements is only added to `heavy`,
-- for weed.lua. From other lists only as many elements are removed as take some 10 ms, because other clients wait; if
-- more are due, the returned room is 0.
-- Returns the key's earliest deadline afterwards, the room that is left, and how many members were removed. The first
-- write is a removal: when out of memory the server allows no other. O(log n) for each (O(n) for each from a list).
local heavy = {}
local function may_walk(key)
  if redis.acl_check_cmd then
    return redis.acl_check_cmd('lrange', key, 0, 0) and redis.acl_check_cmd('lset', key, 0, '')
  end
  -- Before Redis 7.0 the only test of the permission is to run LSET, here so that it changes nothing.
  local first = redis.pcall('lrange', key, 0, 0)
  return not failed(first) and not failed(redis.pcall('lset', key, 0, first[1]))
end
local function bearable(key)
  if redis.acl_check_cmd and not redis.acl_check_cmd('lrange', key, 0, 0) then return 500 end
  for _, one in ipairs({{1000000, 1}, {100000, 4}, {10000, 10}, {1000, 100}}) do
    local there = redis.pcall('lrange', key, one[1], one[1])
    if not failed(there) and there[1] then return one[2] end
  end
  return 500
end
local function clear(kind, key, shadow, index, moment, gone, room, strict, walks)
  local before, members = room, 0
  gone = gone or kind ~= 'set' and kind ~= 'hash' and kind ~= 'zset' and kind ~= 'list'
  while room > 0 and not gone do
    local due = call('zrangebyscore', shadow, 0, moment, 'limit', 0, math.min(room, 500))
    if #due == 0 then break end
    local notes = strict and 0 or pay_first(key, index)
    if notes == 500 and walks then  -- more notes may be left: send their events first, in the next rounds
      room = 0
      break
    end
    if walks and kind == 'list' and #due >= 100 and not heeded(key, index) and may_walk(key) then
      heavy[#heavy + 1] = key
      break
    end
    if notes == 0 then  -- otherwise look again: events pushed to this list may have given elements a new life
      local most = walks and kind == 'list' and #due > 1 and bearable(key) or 500
      local cut = #due > most
      if cut then due = {unpack(due, 1, most)} end
      members = members + lapse(kind, key, shadow, index, due, strict)
      call('zrem', shadow, unpack(due))
      room = cut and 0 or room - #due
      gone = call('exists', key) == 0
    end
  end
  if gone then
    drop(key, shadow, index)
  else
    local void = call('zrangebyscore', shadow, -moment, '(0', 'limit', 0, math.min(room, 500))
    if #void > 0 then call('zrem', shadow, unpack(void)) end
    room = room - #void
  end
  local earliest = call('zscore', index, key)
  if not earliest and undeclared then earliest = first_of(shadow) end  -- the index is at another node
  if room < before or gone or earliest and tonumber(earliest) <= moment then
    earliest = refresh(key, shadow, index)
  end
  return earliest, room, members
end
