-- Voids the deadlines of those of some members that are absent from their collection.
-- uses: has, index, void
-- KEYS: key, its shadow, the index
-- ARGV: the database; then the members
-- Result: how many were voided
-- Complexity: O(log n) for each member (O(n) for a list)
if redis.pcall('select', ARGV[1]).err then return 0 end
if redis.call('exists', KEYS[2]) == 0 then return 0 end
local kind, voided = redis.call('type', KEYS[1]).ok, 0
for position = 2, #ARGV do
  if void(kind, KEYS[1], KEYS[2], ARGV[position]) then voided = voided + 1 end
end
return voided
