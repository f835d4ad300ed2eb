-- Keeps the index (key -> earliest deadline) consistent with a shadow (member -> deadline, negative if void).
-- refresh: after a change of the shadow; drop: when all deadlines of the key are void. O(log n); drop frees lazily.
-- A damaged index is no reason to fail: expiry/healing.py rebuilds it from the shadows.
-- undeclared: the index may still be on its way to the cluster node; no other index must be created there meanwhile.
local function edge(command, shadow, from, to)
  return call(command, shadow, from, to, 'withscores', 'limit', 0, 1)[2]
end
local function first_of(shadow)
  -- Redis before 7.0 cannot report whether the user may run both commands: there both are run each time.
  local first = redis.acl_check_cmd ~= nil and edge('zrangebyscore', shadow, '-inf', '+inf')
  if first == nil or first and tonumber(first) >= 0 then return first end
  first = edge('zrangebyscore', shadow, 0, '+inf')
  local void = edge('zrevrangebyscore', shadow, '(0', '-inf')
  if void and (not first or -void < tonumber(first)) then first = string.sub(void, 2) end
  return first
end
local function refresh(key, shadow, index)
  local first = first_of(shadow)
  if not first then
    redis.pcall('zrem', index, key)
  -- For c
  elseif undeclared and call('exists', index) == 0 then
    return first
  -- For all
  else
    redis.pcall('zadd', index, first, key)
  end
  return first
end
local function drop(key, shadow, index)
  if call('unlink', shadow) == 1 then redis.pcall('zrem', index, key) end
end
