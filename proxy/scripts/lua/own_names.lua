-- Scans, one step at a time, for names of the proxy's own keys in one database, and for keys in its index.
-- uses: sorted
-- KEYS: the index
-- ARGV: the database; the cursors of SCAN and ZSCAN ('' to leave out the names or the keys); the pattern of the names;
--   how many names to look at in a step
-- Result: the two next cursors, '' at the end; the names; the keys
-- Reads only
-- Complexity: O(count)
if redis.pcall('select', ARGV[1]).err then return {'', '', {}, {}} end
local function step(cursor, ...)
  if cursor == '' then return '', {} end
  local page = call(...)
  return page[1] == '0' and '' or page[1], page[2]
end
local place, names = step(ARGV[2], 'scan', ARGV[2], 'match', ARGV[4], 'count', ARGV[5])
local other, entries = step(sorted(KEYS[1]) and ARGV[3] or '', 'zscan', KEYS[1], ARGV[3], 'count', ARGV[5])
local keys = {}
for position = 1, #entries, 2 do keys[#keys + 1] = entries[position] end
return {place, other, names, keys}
