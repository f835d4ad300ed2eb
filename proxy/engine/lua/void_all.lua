-- Voids all deadlines of a key whose whole value is about to be replaced.
-- uses: index
-- KEYS: key, its shadow, the index
-- ARGV: the database
-- Result: 0
-- Complexity: O(log n) for n keys in the index; the shadow is freed lazily
if redis.pcall('select', ARGV[1]).err then return 0 end
drop(KEYS[1], KEYS[2], KEYS[3])
return 0
