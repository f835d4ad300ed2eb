-- Drops the deadline of a member.
-- uses: has, index, now, discard, overdue, passed
-- KEYS: key, its shadow, the index
-- ARGV: member; in a transaction that has seen to what is due in the key (clear_front.lua) 'cleared'
-- Result: 1 dropped; 0 there was none, or it has passed, or no such key
-- Complexity: O(log n)
local key, shadow, index, member = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local deadline, moment = tonumber(call('zscore', shadow, member) or nil), (now())
if not deadline then return 0 end
local kind = call('type', key).ok
if deadline > 0 and deadline <= moment and passed(kind, key, shadow, index, {member}, ARGV[2], deadline, moment) then
  return 0
end
call('zrem', shadow, member)
refresh(key, shadow, index)
if kind ~= 'set' and kind ~= 'hash' and kind ~= 'zset' and kind ~= 'list' then return 0 end
if deadline < 0 and has(kind, key, member) then return 0 end
return 1
