-- Returns an error for a request on members. The error for a key of the wrong type takes precedence.
-- uses: has, now, alive, fits
-- KEYS: key, its shadow
-- ARGV: the error; the possible types of the key, then ' cleared' in a transaction that has removed due members
--   (clear_front.lua)
-- Result: the error, or WRONGTYPE
-- Complexity: O(1)
local kind, wanted, cleared = call('type', KEYS[1]).ok, ARGV[2]:match('(%S+)(.*)')
if kind ~= 'none' and not fits(kind, wanted) and alive(kind, KEYS[1], KEYS[2], past(now(), cleared ~= '')) then
  return misfit(wanted)
end
return redis.error_reply(ARGV[1])
