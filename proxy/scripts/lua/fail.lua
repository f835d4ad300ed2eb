-- Returns an error when the request would run: inside MULTI, in the reply to EXEC.
-- KEYS: nothing, or a key; if that key does not exist the result is ARGV[2]
-- ARGV: the error; the result for a missing key
-- Complexity: O(1)
if KEYS[1] and call('exists', KEYS[1]) == 0 then return tonumber(ARGV[2]) end
return redis.error_reply(ARGV[1])
