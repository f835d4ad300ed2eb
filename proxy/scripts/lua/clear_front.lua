-- Removes what is due in some keys, in a transaction, in front of the requests that name them: deadlines may pass while the
-- transaction waits in the server. Where somebody has asked to be told of what expires, all that follows counts as run
-- before those deadlines.
-- uses: index, now, discard
-- KEYS: each key followed by its shadow, then the index
-- ARGV: how many members to remove from each key at most, some hundred
-- Result: how many deadlines went
-- Complexity: O(log n) for each member removed (O(n) for each from a list)
local index, moment, count = KEYS[#KEYS], (now()), 0
for place = 1, #KEYS - 1, 2 do
  local key, shadow = KEYS[place], KEYS[place + 1]
  local due = call('zrangebyscore', shadow, '(0', moment, 'limit', 0, ARGV[1])
  if #due > 0 then
    if call('exists', string.sub(index, 1, -6) .. 'events') == 1 then return count end
    discard(call('type', key).ok, key, due)
    if call('exists', key) == 0 then
      drop(key, shadow, index)
    else
      call('zrem', shadow, unpack(due))
      refresh(key, shadow, index)
    end
    count = count + #due
  end
end
return count
