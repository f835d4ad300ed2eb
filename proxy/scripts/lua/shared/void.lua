-- Voids the deadline of a member that has been removed: it stays in the shadow, as minus the deadline, because TTL still
-- tells it (as KeyDB does), until it passes, the member comes back, or the key goes. O(log n), of a list O(n).
-- gone: it is known that the member is.
local function void(kind, key, shadow, member, gone)
  local deadline = call('zscore', shadow, member)
  if deadline and tonumber(deadline) > 0 and (gone or not has(kind, key, member)) then
    -- Where there is no memory left for a void deadline there is none: TTL tells less, nothing else changes.
    local added = redis.pcall('zadd', shadow, -deadline, member)
    if type(added) == 'table' then call('zrem', shadow, member) end
    return true
  end
  return false
end
-- Forgets the void deadline of a member that is there again, by a way that was not seen (a script): it is about to be
-- removed, and TTL shall not tell of it what an earlier life had. Gives whether there was one. O(log n).
local function forget(kind, key, shadow, member)
  local deadline = call('zscore', shadow, member)
  return deadline and tonumber(deadline) < 0 and has(kind, key, member) and call('zrem', shadow, member) == 1
end
