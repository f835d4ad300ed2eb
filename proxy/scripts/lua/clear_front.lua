-- Removes due members from some keys, in a transaction, in front of the requests that name them: deadlines may pass
-- while the transaction waits in the server. Not if the database has rules for events.
-- uses: index, now, discard, overdue, passed
-- KEYS: each key followed by its shadow, then the index
-- ARGV: how many members to remove from each key at most, some hundred
-- Result: nothing
-- Complexity: O(log n) for each member removed (O(n) for each from a list)
local moment = now()
for place = 1, #KEYS - 1, 2 do
  local key, shadow = KEYS[place], KEYS[place + 1]
  local due = call('zrangebyscore', shadow, '(0', moment, 'limit', 0, ARGV[1])
  if due[1] then passed(call('type', key).ok, key, shadow, KEYS[#KEYS], due) end
end
