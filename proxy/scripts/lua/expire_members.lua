-- Gives members of a key a deadline, for HEXPIRE and the other commands in proxy/commands/dialects.py. A deadline in
-- the past removes the members at once. Overwriting a member drops such a deadline (shared/renew.lua). So the deadline
-- is marked: stored half a millisecond early, which makes no difference by a clock of whole milliseconds. Commands for
-- several types, which no server has itself, store it a quarter of a millisecond early (shared/hand_over.lua).
-- uses: has, index, now, discard, overdue, passed, need, settle, alive, each, fits
-- KEYS: key, its shadow, the index
-- ARGV: as one argument, separated by spaces: milliseconds; 'relative' (to now) or 'absolute'; the command's name, for
--   the error about a time out of range; the latest deadline; the possible types of the key; the result for a member
--   that is removed; the condition NX, XX, GT, LT, XXGT, XXLT or ''. Then the members
-- Operations: 1 for one member; n for several; x with a condition; d if the deadline may have passed
-- Result: for each member -2 no such key or member; 0 the condition does not hold; 1 set; another number: removed. An
--   error for another type
-- Complexity: O(log n) for each member (a list of n is read once for 500 members, and walked for each removed one)
local term, mode, name, latest, wanted, code, condition = ARGV[1]:match('(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S*)')
local key, shadow, index, deadline, moment = KEYS[1], KEYS[2], KEYS[3], tonumber(term), now()
local kind, replies, nothing_due = call('type', key).ok, {}, false
local there = kind ~= 'none'
-- For 1
-- A shorter form for one member, because the server hashes the script's text at each EVAL. For a key of another type it
-- removes at most 500 due members (10 of a list, where each costs a scan).
if #ARGV == 2 and there and not fits(kind, wanted) then
  local due = grace == 0
    and redis.pcall('zrangebyscore', shadow, '(0', moment, 'limit', 0, kind == 'list' and 10 or 500) or {}
  if due[1] then passed(kind, key, shadow, index, due) end
  if call('type', key).ok ~= 'none' then return misfit(wanted) end
  there = false
end
-- For n; uses: settle, alive, each
if #ARGV > 2 and there then
  nothing_due = settle(key, shadow, index)
  kind = call('type', key).ok
  there = kind ~= 'none' and (nothing_due or alive(kind, key, shadow, moment - grace))
  if there and not fits(kind, wanted) then return misfit(wanted) end
end
-- For all
if mode == 'relative' then deadline = deadline + moment end
if deadline > tonumber(latest) then return redis.error_reply("ERR invalid expire time in '" .. name .. "' command") end
if not there then
  for place = 1, #ARGV - 1 do replies[place] = -2 end
  return replies
end
need_refresh(shadow)
local removes = deadline <= moment
-- For d
if removes then
  for _, command in ipairs({'unlink', 'exists'}) do need(command, shadow) end
  need('zrem', shadow, ARGV[2])
  need_index(index, 'zrem', index)
end
-- For x
-- present: a member's deadline. If missing it counts as infinite: nothing is greater, everything is less.
local function holds(present)
  if condition == 'NX' and present or condition:sub(1, 2) == 'XX' and not present then return false end
  local order = condition:sub(-2)
  if order == 'GT' and (not present or deadline <= present) then return false end
  return order ~= 'LT' or not present or deadline < present
end
-- For all
-- least: the earliest deadline that has gone or has been replaced.
local early, removed, given, least = wanted:find('|', 1, true) and 0.25 or 0.5, false, false, math.huge
local score = string.format('%.2f', deadline - early)
-- For 1
if #ARGV == 2 then
  local member = ARGV[2]
  local lives = has(kind, key, member)
  local stored = lives and tonumber(call('zscore', shadow, member) or nil)
  local present = stored and stored > 0 and math.ceil(stored)
  if not lives or present and stored <= moment and passed(kind, key, shadow, index, {member}, stored, moment) then
    return {-2}
  end
  -- For 1+x
  if not holds(present) then return {0} end
  -- For 1+d
  if removes then
    discard(kind, key, {member})
    removed, replies[1] = true, tonumber(code)
    if call('exists', key) == 1 then call('zrem', shadow, member) end
  end
  -- For 1
  if not removed then
    call('zadd', shadow, score, member)
    given, replies[1], least = true, 1, stored and math.abs(stored) or least
  end
end
-- For n
local plain = nothing_due and condition == '' and not removes
-- Returns the state of a present member: its deadline, true for none, false if the deadline has passed.
local function found(member, stored)
  stored = tonumber(stored or nil)
  if not stored then return true end
  least = math.min(least, math.abs(stored))
  if stored < 0 then return true end
  return not (stored <= moment and passed(kind, key, shadow, index, {member}, stored, moment)) and math.ceil(stored)
end
for first = 2, #ARGV == 2 and 0 or #ARGV, 500 do
  local members = {unpack(ARGV, first, math.min(first + 499, #ARGV))}
  local each, new, gone, size = has_each(kind, key, members), {}, {}, 0
  if plain then
    for place, member in ipairs(members) do
      if each[place] then
        new[size + 1], new[size + 2], size = score, member, size + 2
        replies[first + place - 2] = 1
      else
        replies[first + place - 2] = -2
      end
    end
  else
    local states, scores = {}, score_each(shadow, members)
    for place, member in ipairs(members) do
      local state, reply = states[member], removes and 2 or 1
      if state == nil then state = each[place] and found(member, scores[place]) end
      -- For n+x
      if state and not holds(state ~= true and state) then reply = 0 end
      -- For n
      if not state then
        reply = -2
      elseif reply == 2 then
        gone[#gone + 1], state = member, false
      elseif reply == 1 then
        new[#new + 1], new[#new + 2], state = score, member, deadline
      end
      states[member], replies[first + place - 2] = state, reply == 2 and tonumber(code) or reply
    end
  end
  -- For n+d
  if gone[1] then
    discard(kind, key, gone)
    removed = true
    if call('exists', key) == 1 then call('zrem', shadow, unpack(gone)) end
  end
  -- For n
  if new[1] then
    -- If not all deadlines are new, one of the replaced ones may have been the earliest.
    if call('zadd', shadow, unpack(new)) < #new / 2 and plain then least = 0 end
    given = true
  end
end
-- For d
if removed then
  if call('exists', key) == 0 then drop(key, shadow, index) else refresh(key, shadow, index) end
end
-- For all
if given and not removed then
  local before = redis.pcall('zscore', index, key)
  if type(before) ~= 'string' or deadline - early < tonumber(before) then
    redis.pcall('zadd', index, score, key)
  elseif least <= tonumber(before) then
    refresh(key, shadow, index)
  end
end
return replies
