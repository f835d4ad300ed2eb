-- Removes due members, then runs a command that removes unnamed members or reads the key.
-- uses: has, index, now, discard, overdue, passed, settle, run
-- KEYS: key, its shadow, the index
-- ARGV: the client's request
-- Result: the request's own
-- Complexity: the request's own, plus O(log n) for each member that is due
settle(KEYS[1], KEYS[2], KEYS[3])
return run(1)
