-- Removes members (at most some hundred: they are unpacked) from a collection. O(1) each, O(log n) in a sorted set; for
-- a list every occurrence of each, O(n).
local function remove(kind, key, members)
  if kind == 'set' then call('srem', key, unpack(members))
  elseif kind == 'hash' then call('hdel', key, unpack(members))
  elseif kind == 'zset' then call('zrem', key, unpack(members))
  elseif kind == 'list' then
    for _, member in ipairs(members) do call('lrem', key, 0, member) end
  end
end
