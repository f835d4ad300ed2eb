-- Removes a key of the proxy's own that is not a sorted set. O(1).
local function mend(name)
  local kind = call('type', name).ok
  if kind ~= 'zset' and kind ~= 'none' then call('unlink', name) end
end
