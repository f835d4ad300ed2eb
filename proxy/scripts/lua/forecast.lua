-- Counts the keys with deadlines in some databases, by when their earliest deadlines pass, and reads the rules for
-- events.
-- uses: now, sorted
-- KEYS: the index; the rules
-- ARGV: how many rules to read in all; the databases
-- Result: the clock in µs; for each existing database: its number, how many keys have deadlines, how many of them
--   are due now, and within a minute, an hour and a day (-1: the user may not run ZCOUNT), how many rules there are,
--   the rules
-- Reads only
-- Complexity: O(d log n + r) for d databases and r rules read
local moment, exactly = clock()
local room, found = tonumber(ARGV[1]), {}
for position = 2, #ARGV do
  if not redis.pcall('select', ARGV[position]).err then
    local one = {ARGV[position], 0, 0, 0, 0, 0, 0, {}}
    if sorted(KEYS[1]) then
      one[2] = call('zcard', KEYS[1])
      for place, milliseconds in ipairs({0, 60000, 3600000, 86400000}) do
        local reply = redis.pcall('zcount', KEYS[1], '-inf', moment + milliseconds)
        one[2 + place] = type(reply) == 'number' and reply or -1
      end
    end
    if sorted(KEYS[2]) then
      one[7] = call('zcard', KEYS[2])
      if room > 0 then one[8] = call('zrange', KEYS[2], 0, room - 1) end
      room = room - #one[8]
    end
    found[#found + 1] = one
  end
end
return {exactly, found}
