-- Counts the deadlines of some keys.
-- uses: sorted
-- ARGV: for each key its database and its shadow
-- Result: for each key how many deadlines are stored; 0 if the database does not exist
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
