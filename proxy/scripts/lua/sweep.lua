-- Removes members whose deadline has passed from some keys of one database.
-- uses: index, now, remove, mend
-- KEYS: the index, then each key followed by its shadow
-- ARGV: the database; how many members to remove at most
-- Result: the clock in µs; how many members and deadlines went (fewer than asked for: nothing is left that is due); for
--   each key its earliest deadline afterwards ('' for none), or nothing for keys of a database that there is not
-- Complexity: O(log n) for each key and for each member removed (O(n) for each from a list)
local moment, exactly = now()
local index, room, left = KEYS[1], tonumber(ARGV[2]), {}
if redis.pcall('select', ARGV[1]).err then return {exactly, 0, left} end
mend(index)
for position = 2, #KEYS, 2 do
  local key, shadow = KEYS[position], KEYS[position + 1]
  local kind, before = call('type', key).ok, room
  mend(shadow)
  local gone = kind == 'none'
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
  -- Nothing is written where nothing went: without memory to spare the server allows no write but after a removal.
  local earliest = call('zscore', index, key)
  if room < before or gone or earliest and tonumber(earliest) <= moment then
    earliest = refresh(key, shadow, index)
  end
  left[#left + 1] = earliest or ''
end
return {exactly, tonumber(ARGV[2]) - room, left}
