-- Voids the deadlines of those of some members that are absent from their collection: they may be about to be added.
-- uses: has, index, mend, void
-- KEYS: key, its shadow, the index
-- ARGV: the database; then the members
-- Result: how many were voided. What TTL tells of a removed member stays: the server may yet refuse to add it.
-- Complexity: O(log n) for each member (O(n) for a list)
if redis.pcall('select', ARGV[1]).err then return 0 end
local key, shadow, index = KEYS[1], KEYS[2], KEYS[3]
mend(shadow)
if call('exists', shadow) == 0 then return 0 end
local kind, voided = call('type', key).ok, 0
if kind == 'none' or kind == 'string' then
  voided = call('zcard', shadow)
  drop(key, shadow, index)
  return voided
end
for position = 2, #ARGV do
  if void(kind, key, shadow, ARGV[position]) then voided = voided + 1 end
end
if voided > 0 then refresh(key, shadow, index) end
return voided
