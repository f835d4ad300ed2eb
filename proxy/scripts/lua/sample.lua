-- Takes a random sample of the keys with deadlines in some databases: a page of each index, in hash table order.
-- uses: sorted
-- KEYS: the index
-- ARGV: how many keys of each database; the databases
-- Result: for each existing database: its number, whether the page is the whole index, the keys
-- Reads only
-- Complexity: O(d k) for k keys of each of d databases
local found = {}
for position = 2, #ARGV do
  if not redis.pcall('select', ARGV[position]).err then
    local keys, whole = {}, 1
    if sorted(KEYS[1]) then
      local page = call('zscan', KEYS[1], 0, 'count', ARGV[1])
      whole = page[1] == '0' and 1 or 0
      for place = 1, #page[2], 2 do keys[#keys + 1] = page[2][place] end
    end
    found[#found + 1] = {ARGV[position], whole, keys}
  end
end
return found
