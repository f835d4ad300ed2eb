-- Returns whether a collection holds a member.
-- kind: the reply of TYPE; complexity: O(1), O(log n) for a sorted set, O(n) for a list.
local function has(kind, key, member)
  if kind == 'set' then return call('sismember', key, member) == 1 end
  if kind == 'hash' then return call('hexists', key, member) == 1 end
  if kind == 'zset' then return call('zscore', key, member) ~= false end
  if kind == 'list' then return call('lpos', key, member) ~= false end
  return false
end
