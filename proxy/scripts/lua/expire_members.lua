-- Gives members of a key a deadline; one that has passed removes them at once. Such a deadline is of a dialect whose writes
-- over a member drop it (shared/renew.lua): it is stored half a millisecond early, which no clock of whole milliseconds
-- can tell. A quarter, by the word that is for several types: no server has that itself (shared/hand_over.lua).
-- uses: has, index, now, discard, overdue, passed, settle, need, alive, each, fits
-- KEYS: key, its shadow, the index
-- ARGV: in one, with spaces between: milliseconds, 'relative' (to now) or 'absolute', the command's name for the error of a
--   time that does not fit, the latest deadline, the types of which the key has to have one, the result for a member that is
--   removed, and the condition NX, XX, GT, LT, XXGT, XXLT or ''; in a transaction that has seen to what is due in the key (clear_front.lua) ' cleared' behind it; then the
--   members
-- Result: for each member -2 no such key or member; 0 the condition does not hold; 1 set; another number, removed; an error
--   for another type
-- Complexity: O(log n) for each member (a list of n is read for 500 of them, and walked for each that is removed)
local term, mode, name, latest, wanted, code, condition, cleared =
  ARGV[1]:match('(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S*)(.*)')
local key, shadow, index, deadline, moment = KEYS[1], KEYS[2], KEYS[3], tonumber(term), (now())
cleared = cleared ~= ''
local kind, replies = call('type', key).ok, {}
local there, single = kind ~= 'none', #ARGV == 2
if there and not (single and fits(kind, wanted)) then
  settle(key, shadow, index, cleared)
  kind = call('type', key).ok
  there = kind ~= 'none' and alive(kind, key, shadow, moment)
  if there and not fits(kind, wanted) then return misfit(wanted) end
end
if mode == 'relative' then deadline = deadline + moment end
if deadline > tonumber(latest) then return redis.error_reply("ERR invalid expire time in '" .. name .. "' command") end
if not there then
  for place = 1, #ARGV - 1 do replies[place] = -2 end
  return replies
end
local removes, order, score = deadline <= moment, condition:sub(-2), deadline - (wanted:find('|', 1, true) and 0.25 or 0.5)
local removed, given, had = false, false, false
local function judge(state)
  if not state then return -2 end
  -- A member without a deadline lives forever: nothing is greater, everything is less.
  local present = state ~= true and state
  if condition == 'NX' and present or condition:sub(1, 2) == 'XX' and not present then return 0 end
  if order == 'GT' and (not present or deadline <= present) then return 0 end
  if order == 'LT' and present and deadline >= present then return 0 end
  return removes and 2 or 1
end
need_refresh(shadow)
if removes then
  for _, command in ipairs({'unlink', 'exists'}) do need(command, shadow) end
  need('zrem', shadow, ARGV[2])
end
for first = 2, #ARGV, 500 do
  local members = {unpack(ARGV, first, math.min(first + 499, #ARGV))}
  local each, scores
  if single then
    each, scores = {has(kind, key, members[1])}, {call('zscore', shadow, members[1])}
  else
    each, scores = has_each(kind, key, members), score_each(shadow, members)
  end
  -- Of each member: its deadline, true for none, false where it is not there.
  local states, new, gone = {}, {}, {}
  for place, member in ipairs(members) do
    local state = states[member]
    if state == nil then
      state = each[place] and true or false
      local stored = state and tonumber(scores[place] or nil)
      if stored then
        had = true
        if stored > 0 then state = math.ceil(stored) end
        if stored > 0 and stored <= moment
          and passed(kind, key, shadow, index, {member}, cleared, stored, moment) then
          state = false
        end
      end
    end
    local reply = judge(state)
    if reply == 2 then
      gone[#gone + 1], state = member, false
    elseif reply == 1 then
      new[#new + 1], new[#new + 2], state = score, member, deadline
    end
    states[member], replies[first + place - 2] = state, reply == 2 and tonumber(code) or reply
  end
  if gone[1] then
    discard(kind, key, gone)
    removed = true
    if call('exists', key) == 1 then call('zrem', shadow, unpack(gone)) end
  end
  if new[1] then
    call('zadd', shadow, unpack(new))
    given = true
  end
end
if removed then
  if call('exists', key) == 0 then drop(key, shadow, index) else refresh(key, shadow, index) end
elseif given then
  local before = redis.pcall('zscore', index, key)
  if type(before) ~= 'string' or score < tonumber(before) then
    redis.pcall('zadd', index, score, key)
  elseif had then
    refresh(key, shadow, index)  -- one of them may have had the earliest one
  end
end
return replies
