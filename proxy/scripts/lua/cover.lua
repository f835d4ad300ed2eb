-- Adds covered prefixes to the lists of covered prefixes in some databases.
-- uses: mend
-- KEYS: the list, the index
-- ARGV: how many databases; for each its number, and when to list the prefixes: "beside": if it has an index; "here":
--   always; "whole": always, and mark the list as covering all keys in the index; then the prefixes, with their marks
-- Result: nothing
-- Complexity: O(d n) for d databases and n prefixes
local last = 2 * tonumber(ARGV[1]) + 1
for place = 2, last, 2 do
  if not redis.pcall('select', ARGV[place]).err then
    local indexed = call('exists', KEYS[2]) == 1
    if indexed or ARGV[place + 1] ~= 'beside' then
      mend(KEYS[1])
      if not indexed or ARGV[place + 1] == 'whole' then call('zadd', KEYS[1], -1, '*') end
      for entry = last + 1, #ARGV do call('zadd', KEYS[1], 0, ARGV[entry]) end
    end
  end
end
