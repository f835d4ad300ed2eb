-- Removes one of the proxy's own keys if it is not a sorted set. O(1).
local function mend(name)
  local kind = call('type', name).ok
  if kind ~= 'zset' and kind ~= 'none' then call('unlink', name) end
end
