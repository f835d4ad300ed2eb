-- Returns the values of a hash's fields, and sets or drops their deadlines, or removes the fields (HGETEX, HGETDEL).
-- uses: has, index, now, discard, overdue, passed, settle, need, alive, fits
-- KEYS: key, its shadow, the index
-- ARGV: as one argument, separated by spaces: milliseconds, 'drop' to drop deadlines or 'none' to keep them; 'relative'
--   (to now) or 'absolute'; the command's name, for the error about a time out of range; the latest deadline; 'take' to
--   remove the fields or 'leave'. Then the fields
-- Result: for each field its value, or nothing; an error for another type
-- Complexity: O(log n) for each field
local term, mode, name, latest, take = ARGV[1]:match('(%S+) (%S+) (%S+) (%S+) (%S+)')
local key, shadow, index, deadline, moment = KEYS[1], KEYS[2], KEYS[3], tonumber(term), now()
local timed, replies = call('exists', shadow) == 1, {}
if timed then settle(key, shadow, index) end
local kind = call('type', key).ok
local there = kind ~= 'none' and alive(kind, key, shadow, moment - grace)
if there and kind ~= 'hash' then return misfit('hash') end
if deadline and mode == 'relative' then deadline = deadline + moment end
if deadline and deadline > tonumber(latest) then
  return redis.error_reply("ERR invalid expire time in '" .. name .. "' command")
end
if not there then
  for place = 1, #ARGV - 1 do replies[place] = false end
  return replies
end
local removes, score, gone = take == 'take' or deadline and deadline <= moment, deadline and deadline - 0.5, {}
if removes or score or term == 'drop' then
  need_refresh(shadow)
  need('zrem', shadow, ARGV[2])
  need_index(index, 'zrem', index)
  if removes then
    for _, command in ipairs({'unlink', 'exists'}) do need(command, shadow) end
  elseif score then
    need('zadd', shadow, score, ARGV[2])
  end
end
for first = 2, #ARGV, 500 do
  local members = {unpack(ARGV, first, math.min(first + 499, #ARGV))}
  local values, found, scores = call('hmget', key, unpack(members)), {}, {}
  for place, member in ipairs(members) do
    local value = not gone[member] and values[place]
    local stored = value and timed and tonumber(call('zscore', shadow, member) or nil)
    if stored and stored > 0 and stored <= moment
      and passed(kind, key, shadow, index, {member}, stored, moment) then
      value = false
      gone[member] = true
    end
    if value then
      found[#found + 1] = member
      if score then scores[#scores + 1], scores[#scores + 2] = score, member end
      if removes then gone[member] = true end
    end
    replies[first + place - 2] = value
  end
  if found[1] and removes then
    discard(kind, key, found)
    if timed and call('exists', key) == 1 then call('zrem', shadow, unpack(found)) end
  elseif found[1] and score then
    call('zadd', shadow, unpack(scores))
  elseif found[1] and timed and term == 'drop' then
    call('zrem', shadow, unpack(found))
  end
end
if removes and call('exists', key) == 0 then
  drop(key, shadow, index)
elseif score or timed and (removes or term == 'drop') then
  refresh(key, shadow, index)
end
return replies
