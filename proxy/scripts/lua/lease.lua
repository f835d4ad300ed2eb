-- Tries to take or keep the sweeper's lease.
-- uses: take
-- KEYS: the sweeper's lease
-- ARGV: its database, who asks, for how many ms
-- Result: 0 when the lease is the asker's, else the ms that another has it still
-- Complexity: O(1)
call('select', ARGV[1])
return take(KEYS[1], ARGV[2], ARGV[3])
