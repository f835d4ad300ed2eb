-- Tells whether one of the proxy's own keys is the sorted set that it should be: somebody may have put something else there,
-- which `mend` removes. O(1).
local function sorted(name) return call('type', name).ok == 'zset' end
