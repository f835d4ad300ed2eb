-- Counts the deadlines of some keys.
-- uses: sorted
-- ARGV: for each key its database and its shadow
-- Result: for each how many deadlines are stored in it; 0 where there is no such database
-- Reads only
-- Complexity: O(k) for k keys
local found, selected, fails = {}, nil, false
for place = 1, #ARGV, 2 do
  if ARGV[place] ~= selected then
    selected = ARGV[place]
    fails = redis.pcall('select', selected).err ~= nil
  end
  found[#found + 1] = not fails and sorted(ARGV[place + 1]) and call('zcard', ARGV[place + 1]) or 0
end
return found
