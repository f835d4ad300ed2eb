-- Changes nothing, but is a write, which replicas and the append-only file get: WAIT and WAITAOF wait for it.
-- KEYS: a key of the proxy's own that does not exist
-- Result: nothing
-- Complexity: O(1)
call('set', KEYS[1], '')
call('unlink', KEYS[1])
