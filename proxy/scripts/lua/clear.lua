-- Removes members whose deadline has passed from some keys, over some databases; tells how near the next ones are.
-- uses: index, now, remove, mend
-- KEYS: the index, then each key followed by its shadow
-- ARGV: how many members to remove at most; how many ms to look ahead (0: not at all); the databases ('' for the one that
--   the connection is in)
-- Result: the clock in µs; how many members and deadlines went (fewer than asked for: nothing is left that is due); for
--   each key its earliest deadline in any of the databases afterwards ('' for none); how many deadlines pass in the ms
--   that were looked ahead. Writes only where something is due.
-- Complexity: O(log n) for each key in each database and each member removed (O(n) for each from a list)
local moment, exactly = now()
local index, room, ahead, found, near = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), {}, 0
for place = 1, (#KEYS - 1) / 2 do found[place] = '' end
local function clear(key, shadow)
  local kind, before, gone = call('type', key).ok, room, false
  if call('zrangebyscore', shadow, 0, moment, 'limit', 0, 1)[1] then gone = kind == 'none' or kind == 'string' end
  while room > 0 and not gone do
    local due = call('zrangebyscore', shadow, 0, moment, 'limit', 0, math.min(room, 500))
    if #due == 0 then break end
    remove(kind, key, due)
    call('zrem', shadow, unpack(due))
    room = room - #due
    gone = call('exists', key) == 0
  end
  if gone then
    drop(key, shadow, index)
  else
    local void = call('zrangebyscore', shadow, -moment, '(0', 'limit', 0, math.min(room, 500))
    if #void > 0 then call('zrem', shadow, unpack(void)) end
    room = room - #void
  end
  local earliest = call('zscore', index, key)
  if room < before or gone or earliest and tonumber(earliest) <= moment then
    earliest = refresh(key, shadow, index)
  end
  if ahead > 0 then near = near + #call('zrangebyscore', shadow, moment, moment + ahead, 'limit', 0, 500) end
  return earliest
end
for position = 3, #ARGV do
  if ARGV[position] == '' or not redis.pcall('select', ARGV[position]).err then
    mend(index)
    for place = 1, #found do
      local key, shadow = KEYS[2 * place], KEYS[2 * place + 1]
      mend(shadow)
      local earliest = call('zscore', index, key)
      if earliest or call('exists', shadow) == 1 then earliest = clear(key, shadow) end
      if earliest and (found[place] == '' or tonumber(earliest) < tonumber(found[place])) then
        found[place] = earliest
      end
    end
  end
end
return {exactly, tonumber(ARGV[1]) - room, found, near}
