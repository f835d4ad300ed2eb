-- Returns an error for a request on members. The error for a key of the wrong type takes precedence.
-- uses: has, now, alive, fits
-- KEYS: key, its shadow
-- ARGV: the error; the possible types of the key
-- Result: the error, or WRONGTYPE
-- Complexity: O(1)
local kind, wanted = call('type', KEYS[1]).ok, ARGV[2]
if kind ~= 'none' and not fits(kind, wanted) and alive(kind, KEYS[1], KEYS[2], now() - grace) then
  return misfit(wanted)
end
return redis.error_reply(ARGV[1])
