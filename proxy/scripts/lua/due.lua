-- Looks, in each of some databases, for what is due; where anything is, tries to take or keep the sweeper's lease.
-- uses: now, mend
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
  if redis.pcall('get', KEYS[2]) == ARGV[2] then
    call('pexpire', KEYS[2], ARGV[3])
  elseif not redis.pcall('set', KEYS[2], ARGV[2], 'px', ARGV[3], 'nx') then
    taken = call('pttl', KEYS[2])
    if taken < 0 or taken > tonumber(ARGV[3]) then
      -- Nobody takes it for so long: the clock has been put back since, or something else stands there.
      redis.pcall('set', KEYS[2], ARGV[2], 'px', ARGV[3])
      taken = 0
    else
      taken = math.max(1, taken)
    end
  end
  -- An error of SET (no memory left for a lease) is none of the sweep, which frees some: two sweepers do no harm.
end
return {exactly, taken, found}
