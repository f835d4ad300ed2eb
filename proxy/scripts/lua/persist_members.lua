-- Drops the deadlines of members of a key.
-- uses: has, index, now, discard, overdue, passed, need, alive, each, fits
-- KEYS: key, its shadow, the index
-- ARGV: the possible types of the key; the members
-- Result: for each member -2 no such key or member; -1 no deadline; 1 dropped. An error for another type
-- Complexity: O(log n) for each member (a list of n is read once for 500 members)
local wanted = ARGV[1]
local key, shadow, index, moment, replies, dropped = KEYS[1], KEYS[2], KEYS[3], now(), {}, false
local kind = call('type', key).ok
local there = kind ~= 'none' and alive(kind, key, shadow, moment - grace)
if there and not fits(kind, wanted) then return misfit(wanted) end
for first = 2, #ARGV, 500 do
  local members = {unpack(ARGV, first, math.min(first + 499, #ARGV))}
  local each = there and has_each(kind, key, members)
  local scores, gone, free, drops = each and score_each(shadow, members), {}, {}, {}
  local over = each and grace == 0 and passed_each(key, shadow, index, members, scores, moment) or {}
  for place, member in ipairs(members) do
    local deadline, reply = each and tonumber(scores[place] or nil), -1
    if not each or not each[place] or gone[member] then
      reply = -2
    elseif deadline and deadline > 0 and not free[member] then
      if over[place] or deadline <= moment and passed(kind, key, shadow, index, {member}, deadline, moment) then
        gone[member], reply = true, -2
      else
        free[member], drops[#drops + 1], reply = true, member, 1
      end
    end
    replies[first + place - 2] = reply
  end
  if drops[1] then
    if not dropped then need_refresh(shadow) end
    call('zrem', shadow, unpack(drops))
    dropped = true
  end
end
if dropped then refresh(key, shadow, index) end
return replies
