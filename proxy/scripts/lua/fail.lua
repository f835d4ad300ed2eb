-- Answers with an error at the time at which the request would run: inside MULTI, in the reply of EXEC.
-- KEYS: none, or a key without which the result is ARGV[2] instead
-- ARGV: the error; the result for a missing key
-- Complexity: O(1)
if KEYS[1] and call('exists', KEYS[1]) == 0 then return tonumber(ARGV[2]) end
return redis.error_reply(ARGV[1])
