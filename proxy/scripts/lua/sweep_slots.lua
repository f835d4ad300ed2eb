-- As sweep.lua, for keys of a cluster node in any slots: a script without declared keys may access several slots.
-- uses: index, now, need, glob, discard, lapse, mend, clear
-- KEYS: each key followed by its shadow and its index
-- ARGV: the database; maximum number of members to remove
-- Result: as sweep.lua's, with -1 as the earliest deadline of a key that the node cannot serve
-- Complexity: O(log n) for each key and for each member removed (O(n) for each from a list)
local moment, exactly = clock()
local room, left, members = tonumber(ARGV[2]), {}, 0
if redis.pcall('select', ARGV[1]).err then return {exactly, 0, left, 0, tally} end
for position = 1, #KEYS, 3 do
  local key, shadow, index = KEYS[position], KEYS[position + 1], KEYS[position + 2]
  local kind, earliest, count = redis.pcall('type', key)
  if kind.err and kind.err:find('cluster is down', 1, true) then return {err = told(kind.err, 'type')} end
  if kind.err then
    left[#left + 1] = -1
  else
    mend(index)
    mend(shadow)
    kind = kind.ok
    earliest, room, count = clear(kind, key, shadow, index, moment, kind == 'none', room, false, true)
    members = members + count
    left[#left + 1] = earliest or ''
  end
end
return {exactly, tonumber(ARGV[2]) - room, left, members, tally, heavy}
