-- Finds the due keys of some databases.
-- uses: now
-- KEYS: the index
-- ARGV: maximum number of due keys to name in all; then the databases
-- Result: the clock in µs; for each existing database: its number, its earliest deadline in ms ('' for an empty index),
--   its due keys in order, each with its deadline; the databases whose index has the wrong type
-- Reads only
-- Complexity: O(d log n + k) for d databases and k keys named
local moment, exactly = clock()
local room, found, spoilt = tonumber(ARGV[1]), {}, {}
for position = 2, #ARGV do
  if not redis.pcall('select', ARGV[position]).err then
    local kind, first, due = call('type', KEYS[1]).ok, nil, {}
    if kind == 'zset' then
      first = call('zrange', KEYS[1], 0, 0, 'withscores')[2]
    elseif kind ~= 'none' then
      spoilt[#spoilt + 1] = ARGV[position]
    end
    if first and tonumber(first) <= moment and room > 0 then
      due = call('zrangebyscore', KEYS[1], '-inf', moment, 'withscores', 'limit', 0, room)
      room = room - #due / 2
    end
    found[#found + 1] = {ARGV[position], first or '', due}
  end
end
return {exactly, found, spoilt}
