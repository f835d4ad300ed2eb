-- Looks, in each of some databases, for what is due; where anything is, tries to take or keep the sweeper's lease.
-- uses: now, mend, take
-- KEYS: the index, the sweeper's lease
-- ARGV: the lease's database, who asks, for how many ms; how many due keys to name in all; then the databases
-- Result: the clock in µs; 0 when the lease is the asker's or not needed, else the ms that another has it still; then for
--   each database that there is: its number, its earliest deadline in ms ('' for an empty index), its due keys in order,
--   each with its deadline
-- Complexity: O(d log n + k) for d databases and k keys named
local moment, exactly = now()
local room, found, taken = tonumber(ARGV[4]), {}, 0
for position = 5, #ARGV do
  if not redis.pcall('select', ARGV[position]).err then
    mend(KEYS[1])
    local first = call('zrange', KEYS[1], 0, 0, 'withscores')[2]
    local due = {}
    if first and tonumber(first) <= moment and room > 0 then
      due = call('zrangebyscore', KEYS[1], '-inf', moment, 'withscores', 'limit', 0, room)
      room = room - #due / 2
    end
    found[#found + 1] = {ARGV[position], first or '', due}
  end
end
if room < tonumber(ARGV[4]) and ARGV[2] ~= '' then
  call('select', ARGV[1])
  taken = take(KEYS[2], ARGV[2], ARGV[3])
end
return {exactly, taken, found}
