-- Removes due members from some keys of one database.
-- uses: index, now, need, glob, discard, lapse, mend, clear
-- KEYS: the index, then each key followed by its shadow
-- ARGV: the database; maximum number of members to remove
-- Result: the clock in µs; how many members and deadlines were removed (fewer than asked for: no due members are left);
--   for each key its earliest deadline afterwards ('' for none), but no keys if the database does not exist; how many
--   members were removed; the `tally` of their events (lapse); the lists that are left to weed.lua
-- Complexity: O(log n) for each key and for each member removed (O(n) for each from a list)
local moment, exactly = clock()
local index, room, left, members = KEYS[1], tonumber(ARGV[2]), {}, 0
if redis.pcall('select', ARGV[1]).err then return {exactly, 0, left, 0, tally} end
mend(index)
for position = 2, #KEYS, 2 do
  local key, shadow = KEYS[position], KEYS[position + 1]
  local kind, earliest, count = call('type', key).ok
  mend(shadow)
  earliest, room, count = clear(kind, key, shadow, index, moment, kind == 'none', room, false, true)
  members = members + count
  left[#left + 1] = earliest or ''
end
return {exactly, tonumber(ARGV[2]) - room, left, members, tally, heavy}
