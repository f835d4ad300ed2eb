-- Finds the indexes that exist in one database of a cluster node. They may be in any of its slots: a script without
-- declared keys may access several.
-- ARGV: the database; the names of the indexes
-- Result: for each 1, 0, or -1 if the node cannot tell now; nothing if the database does not exist
-- Reads only
-- Complexity: O(i) for i indexes
if redis.pcall('select', ARGV[1]).err then return {} end
local found = {}
for place = 2, #ARGV do
  local reply = redis.pcall('exists', ARGV[place])
  found[place - 1] = type(reply) == 'number' and reply or -1
end
return found
