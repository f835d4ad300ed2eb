-- Drops the deadline of a member.
-- uses: has, index, now
-- KEYS: key, its shadow, the index
-- ARGV: member
-- Result: 1 dropped; 0 there was none, or it has passed, or no such key
-- Complexity: O(log n)
local deadline = call('zscore', KEYS[2], ARGV[1])
if not deadline then return 0 end
if tonumber(deadline) > 0 and tonumber(deadline) <= now() then return 0 end
call('zrem', KEYS[2], ARGV[1])
refresh(KEYS[1], KEYS[2], KEYS[3])
local kind = call('type', KEYS[1]).ok
if kind ~= 'set' and kind ~= 'hash' and kind ~= 'zset' and kind ~= 'list' then return 0 end
if tonumber(deadline) < 0 and has(kind, KEYS[1], ARGV[1]) then return 0 end
return 1
