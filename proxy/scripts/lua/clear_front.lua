-- Removes due members from some keys, in a transaction, in front of the requests that name these keys: deadlines may
-- pass while the transaction waits in the server. With rules for events, it leaves notes (shared/overdue.lua).
-- uses: index, now, discard, overdue, passed, settle
-- KEYS: each key followed by its shadow, then the index
-- ARGV: nothing
-- Result: nothing
-- Complexity: O(log n) for each member removed (O(n) for each from a list)
for place = 1, #KEYS - 1, 2 do settle(KEYS[place], KEYS[place + 1], KEYS[#KEYS]) end
