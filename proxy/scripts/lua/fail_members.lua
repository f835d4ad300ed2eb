-- Answers with an error about a request for members, unless their key is of another type: that comes first.
-- uses: has, now, alive
-- KEYS: key, its shadow
-- ARGV: the error; the type that the key has to have
-- Result: the error, or WRONGTYPE
-- Complexity: O(1)
local kind = call('type', KEYS[1]).ok
if kind ~= 'none' and kind ~= ARGV[2] and alive(kind, KEYS[1], KEYS[2], (now())) then
  return redis.error_reply('WRONGTYPE Operation against a key holding the wrong kind of value')
end
return redis.error_reply(ARGV[1])
