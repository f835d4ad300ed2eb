-- Drops the deadline of a member.
-- uses: has, index, now, discard, overdue, passed, need, alive
-- KEYS: key, its shadow, the index
-- ARGV: member
-- Result: 1 dropped; 0 no such key, no deadline, or the deadline has passed
-- Complexity: O(log n)
local key, shadow, index, member = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local deadline, moment = tonumber(call('zscore', shadow, member) or nil), now()
if not deadline then return 0 end
local kind = call('type', key).ok
if deadline > 0 and deadline <= moment and passed(kind, key, shadow, index, {member}, deadline, moment) then
  return 0
end
local counts = kind == 'set' or kind == 'hash' or kind == 'zset' or kind == 'list'
if counts and deadline < 0 then  -- void: it counts until it would have passed (ttl.lua)
  counts = math.floor(-deadline) > moment and not has(kind, key, member) and alive(kind, key, shadow, moment - grace)
end
need_refresh(shadow)
call('zrem', shadow, member)
refresh(key, shadow, index)
return counts and 1 or 0
