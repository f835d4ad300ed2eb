-- Voids the deadlines of absent members in a part of a shadow (shared/comb.lua).
-- uses: has, index, now, void, mend, comb
-- KEYS: key, its shadow, the index
-- ARGV: the database, or '' for that of the connection; the cursor of ZSCAN; about how many deadlines to check; after
--   how many ms to drop void deadlines (missing: never)
-- Result: the next cursor, how many were checked, how many were voided, how many were void before, the cost in
--   deadlines
-- Complexity: O(count log n) (a list of n is read once, O(n + count log n))
if ARGV[1] ~= '' and redis.pcall('select', ARGV[1]).err then return {'0', 1, 0, 0} end
return {comb(KEYS[1], KEYS[2], KEYS[3], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4] or 0), true)}
