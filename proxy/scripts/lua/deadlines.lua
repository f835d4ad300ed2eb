-- Reads the earliest deadlines of some keys, over some databases.
-- uses: now, sorted
-- KEYS: the index
-- ARGV: how many databases; the databases; then the keys
-- Result: the clock in µs; for each key its earliest deadline in any of the databases, in ms ('' for none)
-- Reads only
-- Complexity: O(d k) for d databases and k keys
local _, exactly = clock()
local found, count = {}, tonumber(ARGV[1])
for place = count + 2, #ARGV do found[#found + 1] = '' end
for position = 2, count + 1 do
  if not redis.pcall('select', ARGV[position]).err and sorted(KEYS[1]) then
    for place = 1, #found do
      local deadline = call('zscore', KEYS[1], ARGV[count + 1 + place])
      if deadline and (found[place] == '' or tonumber(deadline) < tonumber(found[place])) then
        found[place] = deadline
      end
    end
  end
end
return {exactly, found}
