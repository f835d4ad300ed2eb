-- Removes what is due in some keys, in a transaction, in front of the requests that name them: deadlines may pass while the
-- transaction waits in the server. Not where somebody has asked to be told of what expires.
-- uses: index, now, discard, overdue
-- KEYS: each key followed by its shadow, then the index
-- ARGV: how many members to remove from each key at most, some hundred
-- Result: how many deadlines went
-- Complexity: O(log n) for each member removed (O(n) for each from a list)
local index, moment, count = KEYS[#KEYS], (now()), 0
for place = 1, #KEYS - 1, 2 do
  local key, shadow = KEYS[place], KEYS[place + 1]
  local due = call('zrangebyscore', shadow, '(0', moment, 'limit', 0, ARGV[1])
  if #due > 0 then
    if told_of(index) then return count end
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
