-- Tells how long members of a key have still to live, or when they expire.
-- uses: has, now, alive, each
-- KEYS: key, its shadow
-- ARGV: in one, with spaces between: the type that the key has to have, 'left' (from now on) or 'at' (since 1970), the unit
--   of the result in milliseconds, and what is added before the rest of a unit is dropped; then the members
-- Result: for each member -2 no such key or member; -1 no deadline; else the time; an error for another type
-- Reads only
-- Complexity: O(1) for each member (O(log n) in a sorted set; a list of n is read for 500 of them)
local wanted, what, unit, rest = ARGV[1]:match('(%S+) (%S+) (%d+) (%d+)')
local key, shadow, moment, replies = KEYS[1], KEYS[2], (now()), {}
local kind = call('type', key).ok
if kind ~= wanted and kind ~= 'none' and alive(kind, key, shadow, moment) then
  return redis.error_reply('WRONGTYPE Operation against a key holding the wrong kind of value')
end
for first = 2, #ARGV, 500 do
  local members = {unpack(ARGV, first, math.min(first + 499, #ARGV))}
  local each = kind == wanted and has_each(kind, key, members)
  local scores = each and score_each(shadow, members)
  for place = 1, #members do
    local deadline, reply = each and tonumber(scores[place] or nil), -1
    if not each or not each[place] then
      reply = -2
    elseif deadline and deadline > 0 then
      -- A whole number of milliseconds, less a half where a dialect has set it (expire_members.lua).
      deadline = math.ceil(deadline)
      reply = -2
      if deadline > moment then
        if what == 'left' then deadline = deadline - moment end
        reply = math.floor((deadline + rest) / unit)
      end
    end
    replies[first + place - 2] = reply
  end
end
return replies
