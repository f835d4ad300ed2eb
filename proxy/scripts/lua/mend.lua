-- Removes an index that is not a sorted set, in some databases.
-- uses: mend
-- KEYS: the index
-- ARGV: the databases
-- Result: nothing
-- Complexity: O(d) for d databases
for _, database in ipairs(ARGV) do
  if not redis.pcall('select', database).err then mend(KEYS[1]) end
end
