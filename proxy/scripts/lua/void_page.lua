-- Voids, in a part of a shadow, the deadlines of members that are absent from their collection; all of them at once, by
-- dropping the shadow, where there is no collection any more.
-- uses: has, index, void, mend
-- KEYS: key, its shadow, the index
-- ARGV: the database, or '' for that of the connection; the cursor of ZSCAN; how many deadlines to look at, about
-- Result: the next cursor, how many were looked at, how many voided
-- Complexity: O(count log n) (O(count n) for a list)
if ARGV[1] ~= '' and redis.pcall('select', ARGV[1]).err then return {'0', 1, 0} end
local key, shadow, voided = KEYS[1], KEYS[2], 0
mend(shadow)
-- Where there is nothing to void nothing is written: the server may refuse every write at present.
if call('exists', shadow) == 0 then return {'0', 1, 0} end
local kind = call('type', key).ok
if kind == 'none' or kind == 'string' then
  voided = call('zcard', shadow)
  drop(key, shadow, KEYS[3])
  return {'0', 1, voided}
end
local page = call('zscan', shadow, ARGV[2], 'count', ARGV[3])
for position = 1, #page[2], 2 do
  if void(kind, key, shadow, page[2][position]) then voided = voided + 1 end
end
return {page[1], #page[2] / 2, voided}
