-- Keep the index (key -> earliest deadline) consistent with a shadow (member -> deadline, negative if void).
-- refresh: after a change of the shadow; drop: when all deadlines of the key are void. O(log n); drop frees lazily.
-- A damaged index is no reason to fail: it is rebuilt from the shadows (expiry/healing.py).
-- undeclared: a cluster node may lack the index, which is on its way to it; another one must not be created meanwhile.
local function first_of(shadow)
  local first = call('zrangebyscore', shadow, 0, '+inf', 'withscores', 'limit', 0, 1)[2]
  local void = call('zrevrangebyscore', shadow, '(0', '-inf', 'withscores', 'limit', 0, 1)[2]
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
