-- Finds which keys (indexes or shadows) exist in one database of a cluster node, in any of its slots: a script without
-- declared keys may access several slots.
-- ARGV: the database; the names of the keys
-- Result: for each 1 if it exists, else 0; -1 if the node cannot answer now. Nothing if the database does not exist
-- Reads only
-- Complexity: O(k) for k keys
if redis.pcall('select', ARGV[1]).err then return {} end
local found = {}
for place = 2, #ARGV do
  local reply = redis.pcall('exists', ARGV[place])
  found[place - 1] = type(reply) == 'number' and reply or -1
end
return found
