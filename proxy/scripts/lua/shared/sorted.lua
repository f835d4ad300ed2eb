-- Returns whether a key of the proxy's own is a sorted set, as it should be; `mend` removes anything else. O(1).
local function sorted(name) return call('type', name).ok == 'zset' end
