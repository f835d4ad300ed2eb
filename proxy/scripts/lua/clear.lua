-- Removes due members from some keys in some databases, and returns how near the next deadlines are.
-- uses: index, now, need, glob, discard, lapse, mend, clear
-- KEYS: the index, then each key followed by its shadow
-- ARGV: maximum number of members to remove; how many ms to look ahead (0: not at all); the databases ('' for the one
--   that the connection is in)
-- Result: the clock in µs; how many members and deadlines were removed (fewer than asked for: no due members are left);
--   for each key its earliest deadline in any of the databases afterwards ('' for none); how many deadlines pass
--   within the ms to look ahead (at most the maximum above is counted for a key); how many members were removed; the
--   `tally` of their events (lapse); each list that is left to weed.lua, followed by its database. Writes only where
--   something is due.
-- Complexity: O(log n) for each key in each database and each member removed (O(n) for each from a list)
local moment, exactly = clock()
local index, room, ahead, found, near, members = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), {}, 0, 0
for place = 1, (#KEYS - 1) / 2 do found[place] = '' end
for position = 3, #ARGV do
  if ARGV[position] == '' or not redis.pcall('select', ARGV[position]).err then
    elsewhere()
    mend(index)
    for place = 1, #found do
      local key, shadow = KEYS[2 * place], KEYS[2 * place + 1]
      mend(shadow)
      local earliest = call('zscore', index, key)
      if earliest or call('exists', shadow) == 1 then
        local kind, count = call('type', key).ok
        local due = call('zrangebyscore', shadow, 0, moment, 'limit', 0, 1)[1]
        local over = due and (kind == 'none' or kind == 'string')
        earliest, room, count = clear(kind, key, shadow, index, moment, over, room, ARGV[position] == '',
          ARGV[position] ~= '' and not undeclared)
        if #heavy % 2 == 1 then heavy[#heavy + 1] = ARGV[position] end
        members = members + count
        if ahead > 0 then near = near + #call('zrangebyscore', shadow, moment, moment + ahead, 'limit', 0, ARGV[1]) end
      end
      if earliest and (found[place] == '' or tonumber(earliest) < tonumber(found[place])) then
        found[place] = earliest
      end
    end
  end
end
return {exactly, tonumber(ARGV[1]) - room, found, near, members, tally, heavy}
