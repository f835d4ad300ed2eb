-- Returns whether a key's type is one of the types that a request allows; `wanted` has them separated by `|`. O(1).
local function fits(kind, wanted)
  return kind == wanted or ('|' .. wanted .. '|'):find('|' .. kind .. '|', 1, true) ~= nil
end
-- The error for a key of another type.
local function misfit(wanted)
  return redis.error_reply(wanted:find('list', 2, true) and 'ERR object type is unsupported'
    or 'WRONGTYPE Operation against a key holding the wrong kind of value')
end
