-- Counts the keys of the database without the proxy's own.
-- KEYS: the index, the sweeper's lease
-- Result: the count. Each key in the index has one shadow.
-- Complexity: O(1)
local own = redis.call('exists', KEYS[1], KEYS[2])  -- first: it removes a lease that has run out
return redis.call('dbsize') - redis.call('zcard', KEYS[1]) - own
