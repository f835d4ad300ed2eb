-- Removes due elements of a list in a walk of many calls, each for a part of the list. Their deadlines are removed at
-- the end of the walk, because an element may occur in the list more than once. Does nothing if rules for events match
-- the key.
-- In each part the first due element is removed first: when out of memory the server allows an LSET only after a
-- removal. All other due elements are overwritten with one of them (LSET), and one LREM removes them. So the list never
-- has an element that no client put there, even if the script is killed.
-- Between two calls others may change the list. The part already done has no due elements. If its last `WINDOW`
-- elements are unchanged, and the list is not shorter, no element has been skipped: the mark holds the list's length
-- and a hash of these elements. Otherwise the walk begins anew. If the list keeps changing, the caller passes an empty
-- mark: then the walk goes on, may skip elements, and at its end also removes the due elements that are left.
-- uses: index, now, need, glob, discard, lapse
-- KEYS: key, its shadow, the index
-- ARGV: the database; how many elements to look at; the time until which deadlines count as due, 0 to begin; how
--   many elements the walk has passed, -1 at its end; the mark of the list as the walk left it, '' to go on whatever
--   has changed
-- Result: the clock in µs; the third to the fifth of ARGV for the next call (the fourth is -2 when nothing is left to
--   do); how many members were removed (a member that occurs in two parts counts twice)
-- Complexity: O(n) for n elements, nearly all of which are only walked over, and O(w log n) for the w elements that are
--   looked at
local WINDOW, COMPARED = 500, 1000000
local moment, exactly = clock()
local key, shadow, index, width = KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[2])
local due_until, behind, mark = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local over = {exactly, due_until, -2, '', 0}
if redis.pcall('select', ARGV[1]).err or heeded(key, index) then return over end
if call('type', shadow).ok ~= 'zset' or call('type', key).ok ~= 'list' then return over end
if behind == -1 then  -- the end of the walk: remove the deadlines
  local room = mark ~= '' and 500 or math.max(1, math.min(500, math.floor(COMPARED / call('llen', key))))
  local members = 0
  for _ = 1, 4 do
    local due = call('zrangebyscore', shadow, '(0', due_until, 'limit', 0, room)
    if due[1] and mark == '' then members = members + lapse('list', key, shadow, index, due, false) end
    if due[1] then call('zrem', shadow, unpack(due)) end
    if #due < room then behind = -2 break end
    if mark == '' then break end
  end
  if call('exists', key) == 0 then
    drop(key, shadow, index)
    behind = -2
  else
    refresh(key, shadow, index)
  end
  return {exactly, due_until, behind, mark, members}
end
local function marked()
  local window = behind > 0 and call('lrange', key, math.max(0, behind - WINDOW), behind - 1) or {}
  return redis.sha1hex(table.concat(window, '\0'))
end
if due_until == 0 then
  due_until, behind = moment, 0
elseif mark ~= '' then
  local length, left = mark:match('^(%d+) (%x+)$')
  if call('llen', key) < tonumber(length) or marked() ~= left then due_until, behind = moment, 0 end
end
local page = call('lrange', key, behind, behind + width - 1)
local scores, due, places = page[1] and call('zmscore', shadow, unpack(page)) or {}, {}, {}
local named, members = {}, 0
for place, element in ipairs(page) do
  local deadline = tonumber(scores[place] or nil)
  if deadline and deadline > 0 and deadline <= due_until then
    due[#due + 1], places[#places + 1] = element, place
    if not named[element] then named[element], members = true, members + 1 end
  end
end
if due[1] then
  call('lrem', key, 1, due[1])
  local one, like, refused = due[2], 1, false
  for number = 3, #due do
    refused = refused or failed(redis.pcall('lset', key, behind + places[number] - 2, one))
    if refused then call('lrem', key, 1, due[number]) else like = like + 1 end
  end
  if one then call('lrem', key, like, one) end
  if call('exists', key) == 0 then
    drop(key, shadow, index)
    return {exactly, due_until, -2, '', members}
  end
end
local at_end = #page < width
behind = behind + #page - #due
if ARGV[3] == '0' or mark ~= '' then mark = call('llen', key) .. ' ' .. marked() end
return {exactly, due_until, at_end and -1 or behind, mark, members}
