-- Tries to take or renew the sweeper's lease.
-- uses: take
-- KEYS: the sweeper's lease
-- ARGV: its database, the caller's name, for how many ms
-- Result: 0 if the caller has the lease, else for how many ms another proxy still has it
-- Complexity: O(1)
call('select', ARGV[1])
return take(KEYS[1], ARGV[2], ARGV[3])
