-- Removes members (at most some hundred: they are unpacked) from a collection, and returns how many there were. O(1)
-- each,
-- O(log n) in a sorted set; for a list every occurrence of each, O(n). This is a removal by request, without events.
-- Expired members are removed by `lapse`.
local function discard(kind, key, members)
  if kind == 'set' then return call('srem', key, unpack(members))
  elseif kind == 'hash' then return call('hdel', key, unpack(members))
  elseif kind == 'zset' then return call('zrem', key, unpack(members))
  end
  local count = 0
  if kind == 'list' then
    for _, member in ipairs(members) do count = count + math.min(1, call('lrem', key, 0, member)) end
  end
  return count
end
