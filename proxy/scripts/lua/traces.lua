-- Counts, in some databases, those keys of the proxy's own that can exist without any deadline: the sweeper's lease,
-- which briefly outlives the last deadline, and rules for events.
-- KEYS: the lease, the rules for events
-- ARGV: the databases
-- Result: how many there are
-- Reads only
-- Complexity: O(d) for d databases
local count = 0
for _, database in ipairs(ARGV) do
  if not redis.pcall('select', database).err then count = count + call('exists', KEYS[1], KEYS[2]) end
end
return count
