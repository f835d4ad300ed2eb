-- Tells whether a collection holds a member.
-- kind: the reply of TYPE; complexity: O(1), O(log n) for a sorted set, O(n) for a list.
local function has(kind, key, member)
  if kind == 'set' then return redis.call('sismember', key, member) == 1 end
  if kind == 'hash' then return redis.call('hexists', key, member) == 1 end
  if kind == 'zset' then return redis.call('zscore', key, member) ~= false end
  if kind == 'list' then return redis.call('lpos', key, member) ~= false end
  return false
end
