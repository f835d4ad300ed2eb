-- Counts the keys of the database, without the proxy's own.
-- KEYS: the index, the sweeper's lease, the rules for events, the covered prefixes, the notes for events
-- Result: the count; wrong while the index has keys without shadows (clients' scripts can put such keys there)
-- Reads only
-- Complexity: O(1)
local own = call('exists', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5])  -- call this first: it removes an expired lease
local count = redis.pcall('zcard', KEYS[1])
return math.max(0, call('dbsize') - (type(count) == 'number' and count or 0) - own)
