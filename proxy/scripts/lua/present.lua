-- Sees which indexes there are in one database of a cluster node. Their slots may be any of the node's: what has no keys
-- declared may look at several.
-- ARGV: the database; the names of the indexes
-- Result: for each 1, 0, or -1 where the node does not tell at present; nothing where there is no such database
-- Reads only
-- Complexity: O(i) for i indexes
if redis.pcall('select', ARGV[1]).err then return {} end
local found = {}
for place = 2, #ARGV do
  local reply = redis.pcall('exists', ARGV[place])
  found[place - 1] = type(reply) == 'number' and reply or -1
end
return found
