-- Keep the index (key -> earliest deadline) true to a shadow (member -> deadline; minus the deadline where it is void).
-- refresh: after a change of the shadow; drop: when all deadlines of the key are void. O(log n); drop frees lazily.
local function refresh(key, shadow, index)
  local first = redis.call('zrangebyscore', shadow, 0, '+inf', 'withscores', 'limit', 0, 1)[2]
  local void = redis.call('zrevrangebyscore', shadow, '(0', '-inf', 'withscores', 'limit', 0, 1)[2]
  if void and (not first or -void < tonumber(first)) then first = string.sub(void, 2) end
  if first then redis.call('zadd', index, first, key) else redis.call('zrem', index, key) end
  return first
end
local function drop(key, shadow, index)
  if redis.call('unlink', shadow) == 1 then redis.call('zrem', index, key) end
end
