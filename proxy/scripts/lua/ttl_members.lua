-- Returns the deadlines of a key's members, or the time left until them.
-- uses: has, now, alive, each, fits
-- KEYS: key, its shadow
-- ARGV: as one argument, separated by spaces: the possible types of the key; 'left' (from now on) or 'at' (since 1970);
--   the unit of the result in milliseconds; the milliseconds to add before rounding down; the result for a member that
--   is not there; 'each' or 'one' (one member, and a result that is no array). Then the members
-- Result: for each member -2 no such key; -1 no deadline; else the time; an error for another type
-- Reads only
-- Complexity: O(1) for each member (O(log n) in a sorted set; a list of n is read once for 500 members)
local wanted, what, unit, rest, missing, many = ARGV[1]:match('(%S+) (%S+) (%d+) (%d+) (%S+) (%S+)')
local key, shadow, moment, replies = KEYS[1], KEYS[2], now(), {}
local kind, passed = call('type', key).ok, moment - grace
local there = kind ~= 'none' and alive(kind, key, shadow, passed)
if there and not fits(kind, wanted) then return misfit(wanted) end
for first = 2, #ARGV, 500 do
  local members = {unpack(ARGV, first, math.min(first + 499, #ARGV))}
  local each = there and has_each(kind, key, members)
  local scores = each and score_each(shadow, members)
  for place = 1, #members do
    local deadline, reply = each and tonumber(scores[place] or nil), -1
    if not each then
      reply = -2
    elseif not each[place] then
      reply = tonumber(missing)
    elseif deadline and deadline > 0 then
      -- A whole number of milliseconds, or less by the fraction that expire_members.lua puts there as a mark.
      deadline = math.ceil(deadline)
      reply = tonumber(missing)
      if deadline > passed then
        if what == 'left' then deadline = math.max(deadline - moment, 1) end
        reply = math.floor((deadline + rest) / unit)
      end
    end
    replies[first + place - 2] = reply
  end
end
return many == 'one' and replies[1] or replies
