-- Voids the deadline of a removed member. The deadline stays in the shadow, negated, because TTL still shows it (as in
-- KeyDB) until it passes, the member is added again, or the key is removed. O(log n), for a list O(n).
-- gone: whether the member is known to be absent.
local function void(kind, key, shadow, member, gone)
  local deadline = call('zscore', shadow, member)
  if deadline and tonumber(deadline) > 0 and (gone or not has(kind, key, member)) then
    -- When out of memory no void deadline is kept: TTL shows less, nothing else changes.
    local added = redis.pcall('zadd', shadow, -deadline, member)
    if type(added) == 'table' then call('zrem', shadow, member) end
    return true
  end
  return false
end
-- Drops the void deadline of a member that a client's script has added again, unnoticed, and that is about to be
-- removed: TTL must not show an earlier life's deadline. Returns whether there was one. O(log n).
local function forget(kind, key, shadow, member)
  local deadline = call('zscore', shadow, member)
  return deadline and tonumber(deadline) < 0 and has(kind, key, member) and call('zrem', shadow, member) == 1
end
