-- Reads the earliest deadlines of some keys, over some databases.
-- KEYS: the index
-- ARGV: how many databases; the databases; then the keys
-- Result: for each key its earliest deadline in any of the databases, in ms ('' for none)
-- Complexity: O(d k) for d databases and k keys
local found, count = {}, tonumber(ARGV[1])
for position = 2, count + 1 do
  redis.call('select', ARGV[position])
  for place = count + 2, #ARGV do
    local deadline = redis.call('zscore', KEYS[1], ARGV[place])
    local slot = place - count - 1
    local known = found[slot]
    if deadline and (not known or known == '' or tonumber(deadline) < tonumber(known)) then
      found[slot] = deadline
    elseif not known then
      found[slot] = ''
    end
  end
end
return found
