-- Gives a member a deadline. A deadline in the past removes the member at once.
-- uses: has, index, now, discard, overdue, passed, need
-- KEYS: key, its shadow, the index
-- ARGV: member; as one argument, separated by spaces: milliseconds; 'relative' (to now) or 'absolute'; the command's
--   name, for the error about a time out of range; the condition NX, XX, GT, LT, XXGT, XXLT or ''
-- Operations: x with a condition; d if the deadline may have passed
-- Result: 1 set (or removed); 0 no such key or member, or the condition does not hold; an error for another type
-- Complexity: O(log n) for n deadlines of the key (O(n) more for a list)
local term, mode, name, condition = ARGV[2]:match('(%S+) (%S+) (%S+) (%S*)')
local deadline, moment = tonumber(term), now()
if mode == 'relative' then deadline = deadline + moment end
if deadline > 9007199254740992 or deadline < -9007199254740992 then
  return redis.error_reply("ERR invalid expire time in '" .. name .. "' command")
end
local key, shadow, index, member = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local kind = call('type', key).ok
if kind == 'none' then return 0 end
if kind ~= 'set' and kind ~= 'hash' and kind ~= 'zset' and kind ~= 'list' then
  return redis.error_reply('ERR object type is unsupported')
end
if not has(kind, key, member) then return 0 end
local stored = tonumber(call('zscore', shadow, member) or nil)
local present = stored and stored >= 0 and math.ceil(stored) or nil
if present and present <= moment and passed(kind, key, shadow, index, {member}, present, moment) then
  return 0
end
-- For x
if condition ~= '' then
  if condition == 'NX' and present then return 0 end
  if condition:sub(1, 2) == 'XX' and not present then return 0 end
  -- A member without a deadline lives forever: nothing is greater, everything is less.
  local order = condition:sub(-2)
  if order == 'GT' and (not present or deadline <= present) then return 0 end
  if order == 'LT' and present and deadline >= present then return 0 end
end
-- For all
need_refresh(shadow)
-- For d
if deadline <= moment then
  for _, name in ipairs({'unlink', 'exists'}) do need(name, shadow) end
  need('zrem', shadow, member)
  need_index(index, 'zrem', index)
  discard(kind, key, {member})
  if call('exists', key) == 0 then
    drop(key, shadow, index)
  elseif call('zrem', shadow, member) == 1 then
    refresh(key, shadow, index)
  end
  return 1
end
-- For all
local before = redis.pcall('zscore', index, key)
call('zadd', shadow, deadline, member)
if type(before) ~= 'string' or deadline < tonumber(before) then
  redis.pcall('zadd', index, deadline, key)
elseif stored and math.abs(stored) <= tonumber(before) then
  refresh(key, shadow, index)  -- the member had the key's earliest deadline
end
return 1
