-- Returns the time left until a member's deadline, or, as in KeyDB, until a removed member's void deadline.
-- uses: has, now, alive
-- KEYS: key, its shadow
-- ARGV: member; the unit of the result in milliseconds (1000 or 1)
-- Result: -2 no such key; -1 no deadline; else the time left, rounded to the nearest unit
-- Reads only
-- Complexity: O(1)
local kind = call('type', KEYS[1]).ok
if kind == 'none' then return -2 end
local moment = now()
local passed = moment - grace
if not alive(kind, KEYS[1], KEYS[2], passed) then return -2 end
local deadline = tonumber(call('zscore', KEYS[2], ARGV[1]) or nil)
if not deadline or kind ~= 'set' and kind ~= 'hash' and kind ~= 'zset' and kind ~= 'list' then return -1 end
if deadline < 0 then
  if has(kind, KEYS[1], ARGV[1]) then return -1 end
  -- Nothing else in a transaction shows that a void deadline passes.
  deadline, passed = math.floor(-deadline), moment  -- a void deadline's fraction may note a time (void_page.lua)
end
deadline = math.ceil(deadline)  -- a fraction may be a mark (expire_members.lua)
if deadline <= passed then return -1 end
local unit = tonumber(ARGV[2])
return math.floor((math.max(deadline - moment, 1) + unit / 2) / unit)
