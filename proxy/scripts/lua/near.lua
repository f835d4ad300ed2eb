-- Finds keys that are or soon will be due in the index of the connection's own database; changes nothing.
-- uses: now, sorted
-- KEYS: the index
-- ARGV: how many ms to look ahead; maximum number of keys to name
-- Result: how many of the keys are due; the keys, earliest deadline first
-- Reads only
-- Complexity: O(log n + k) for k keys named
if not sorted(KEYS[1]) then return {0, {}} end
local moment = now()
local found = call('zrangebyscore', KEYS[1], '-inf', moment + ARGV[1], 'limit', 0, ARGV[2])
local due = call('zrangebyscore', KEYS[1], '-inf', moment, 'limit', 0, ARGV[2])
return {#due, found}
