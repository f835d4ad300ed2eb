-- Changes nothing, but is sent to replicas and to the append-only file: what WAIT and WAITAOF wait for.
-- KEYS: a key of the proxy's own that does not exist
-- Result: nothing
-- Complexity: O(1)
call('set', KEYS[1], '')
call('unlink', KEYS[1])
