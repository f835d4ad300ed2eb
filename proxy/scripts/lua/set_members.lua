-- Sets fields of a hash, or adds members to a set, and sets their deadlines (HSETEX, SADDEX).
-- uses: has, index, now, discard, overdue, passed, settle, renew, need, alive, fits
-- KEYS: key, its shadow, the index
-- ARGV: as one argument, separated by spaces: milliseconds, 'keep' to keep deadlines or 'none' to drop them; 'relative'
--   (to now) or 'absolute'; the command's name, for the error about a time out of range; the latest deadline; 'hash' or
--   'set'; 'done' or 'count'; NX or XX for the key, and NX or XX for all members, '-' for neither. Then the members,
--   those of a hash each with its value
-- Result: done: 1; 0 a condition does not hold. count: how many members are new; with NX, members that were there keep
--   their deadlines. An error for another type
-- Complexity: O(log n) for each member
local term, mode, name, latest, wanted, what, of_key, condition =
  ARGV[1]:match('(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+)')
local step, new = wanted == 'hash' and 2 or 1, 0
local key, shadow, index, deadline, moment = KEYS[1], KEYS[2], KEYS[3], tonumber(term), now()
local timed = call('exists', shadow) == 1
if timed then settle(key, shadow, index) end
local kind = call('type', key).ok
local there = kind ~= 'none' and alive(kind, key, shadow, moment - grace)
if there and kind ~= wanted then return misfit(wanted) end
if deadline and mode == 'relative' then deadline = deadline + moment end
if deadline and deadline > tonumber(latest) then
  return redis.error_reply("ERR invalid expire time in '" .. name .. "' command")
end
if of_key == 'NX' and there or of_key == 'XX' and not there then return 0 end
if step == 2 then need('hset', key, ARGV[2], ARGV[3]) else need('sadd', key, ARGV[2]) end
need_refresh(shadow)
need('zrem', shadow, ARGV[2])
need_index(index, 'zrem', index)
if deadline then
  for _, command in ipairs({'unlink', 'exists'}) do need(command, shadow) end
  need('zadd', shadow, deadline, ARGV[2])
end
if timed then renew(key, shadow, index, 2, #ARGV - step + 1, step) end
if condition ~= '-' and what == 'done' then
  for place = 2, #ARGV, step do
    if has(wanted, key, ARGV[place]) ~= (condition == 'XX') then return 0 end
  end
end
local removes, score = deadline and deadline <= moment, deadline and deadline - 0.5
for first = 2, #ARGV, 1000 do
  local last, names, scores = math.min(first + 999, #ARGV), {}, {}
  for place = first, last, step do
    names[#names + 1] = ARGV[place]
    local kept = what == 'count' and condition == 'NX' and has(wanted, key, ARGV[place])
    if score and not kept then scores[#scores + 1], scores[#scores + 2] = score, ARGV[place] end
  end
  if removes then
    discard(wanted, key, names)
  else
    new = new + call(step == 2 and 'hset' or 'sadd', key, unpack(ARGV, first, last))
    if scores[1] then call('zadd', shadow, unpack(scores)) end
  end
  if timed and not score and term ~= 'keep' or removes and call('exists', key) == 1 then
    call('zrem', shadow, unpack(names))
  end
end
if removes and call('exists', key) == 0 then
  drop(key, shadow, index)
elseif timed or score then
  refresh(key, shadow, index)
end
return what == 'count' and new or 1
