-- Returns an error for a request on members. The error for a key of the wrong type takes precedence.
-- uses: has, now, alive, fits
-- KEYS: key, its shadow
-- ARGV: the error; the possible types of the key
-- Result: the error, or WRONGTYPE
-- Complexity: O(1)
local kind = call('type', KEYS[1]).ok
if kind ~= 'none' and not fits(kind, ARGV[2]) and alive(kind, KEYS[1], KEYS[2], now()) then
  return misfit(ARGV[2])
end
return redis.error_reply(ARGV[1])
