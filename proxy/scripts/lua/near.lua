-- Looks in the index of the connection's own database for what is due, or will be in a moment; changes nothing.
-- uses: now
-- KEYS: the index
-- ARGV: how many ms to look ahead; how many keys to name at most
-- Result: how many of the keys are due; the keys, earliest deadline first
-- Complexity: O(log n + k) for k keys named
local moment = now()
local found = redis.pcall('zrangebyscore', KEYS[1], '-inf', moment + ARGV[1], 'limit', 0, ARGV[2])
local due = redis.pcall('zrangebyscore', KEYS[1], '-inf', moment, 'limit', 0, ARGV[2])
if failed(found) or failed(due) then return {0, {}} end  -- something else stands in the index's place
return {#due, found}
