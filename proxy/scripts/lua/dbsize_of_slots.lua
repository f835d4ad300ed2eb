-- Counts the keys of a cluster node without the proxy's own.
-- ARGV: the sweeper's lease; the names of the indexes that there may be
-- Result: the count; wrong while an index has keys without shadows (clients' scripts can put such keys there)
-- Reads only
-- Complexity: O(i) for i indexes
local own = redis.pcall('exists', ARGV[1])  -- call this first: it removes an expired lease
own = type(own) == 'number' and own or 0
for place = 2, #ARGV do
  local count = redis.pcall('zcard', ARGV[place])  -- an error: the slot has gone
  if type(count) == 'number' and count > 0 then own = own + 1 + count end
end
return math.max(0, call('dbsize') - own)
