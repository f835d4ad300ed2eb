-- Looks, in each of some databases, for what is due.
-- uses: now
-- KEYS: the index
-- ARGV: how many due keys to name in all; then the databases
-- Result: the clock in ms, then for each database: its number, its earliest deadline in ms (or '' for an empty index),
--   and its due keys, earliest first
-- Complexity: O(d log n + k) for d databases and k keys named
local moment, room, found = now(), tonumber(ARGV[1]), {}
for position = 2, #ARGV do
  redis.call('select', ARGV[position])
  local first = redis.call('zrange', KEYS[1], 0, 0, 'withscores')[2]
  local due = {}
  if first and tonumber(first) <= moment and room > 0 then
    due = redis.call('zrangebyscore', KEYS[1], '-inf', moment, 'limit', 0, room)
    room = room - #due
  end
  found[#found + 1] = {ARGV[position], first or '', due}
end
return {moment, found}
