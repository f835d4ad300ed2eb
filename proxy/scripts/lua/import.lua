-- Gives members of keys in one database the deadlines that they had in KeyDB; or reports what that would do; or
-- compares those with the existing deadlines. Due members are removed, as KeyDB would have done.
-- uses: has, index, now, discard, mend, need
-- KEYS: the index, then each key followed by its shadow
-- ARGV: the database; set, look or compare; then for each key: when it expires in Unix ms (0: never), how many members,
--   and for each member: the member, its deadline in Unix ms, and '' or '=' with another member: if that exists, the
--   deadline may be meant for it
-- Result: for each member a letter. s: the deadline was set (look: would be set; compare: is the same); r: it had
--   passed, and the member was removed (look: would be removed); p: it had passed, and the member is gone; k: no such
--   key; m: no such member; t: another type; a: either of two members may be meant; d: another deadline. '' if there is
--   no such database
-- Complexity: O(log n) for each member
local moment, exactly = clock()
local index, mode, letters, place = KEYS[1], ARGV[2], {}, 3
local found = redis.pcall('select', ARGV[1])
if found.err then
  if string.find(found.err, 'out of range', 1, true) then return '' end
  return found
end
local setting = mode == 'set'
if setting then mend(index) end
local function judge(kind, key, shadow, expires, member, deadline, other)
  local passed = deadline <= moment
  if kind == 'none' then return (passed or expires ~= 0 and expires <= moment) and 'p' or 'k' end
  if kind ~= 'set' and kind ~= 'hash' and kind ~= 'zset' then return 't' end
  if not has(kind, key, member) then return passed and 'p' or 'm' end
  if other ~= '' and has(kind, key, string.sub(other, 2)) then return 'a' end
  if mode == 'compare' then
    return tonumber(call('zscore', shadow, member) or nil) == deadline and 's' or 'd'
  end
  return passed and 'r' or 's'
end
for position = 2, #KEYS, 2 do
  local key, shadow, expires, count = KEYS[position], KEYS[position + 1], tonumber(ARGV[place]), tonumber(ARGV[place + 1])
  local kind = call('type', key).ok
  local kept, gone = {}, {}
  for at = place + 2, place + 3 * count + 1, 3 do
    local letter = judge(kind, key, shadow, expires, ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2])
    letters[#letters + 1] = letter
    if setting and letter == 's' then
      kept[#kept + 1] = ARGV[at + 1]
      kept[#kept + 1] = ARGV[at]
    elseif setting and letter == 'r' then
      gone[#gone + 1] = ARGV[at]
    end
  end
  place = place + 2 + 3 * count
  if #kept + #gone > 0 then
    mend(shadow)
    if #gone > 0 then
      for _, name in ipairs({'unlink', 'exists'}) do need(name, shadow) end
      need('zrem', shadow, gone[1])
      discard(kind, key, gone)
    end
    if #kept > 0 then call('zadd', shadow, unpack(kept)) end
    if #gone > 0 and call('exists', key) == 0 then
      drop(key, shadow, index)
    else
      if #gone > 0 then call('zrem', shadow, unpack(gone)) end
      refresh(key, shadow, index)
    end
  end
end
return table.concat(letters)
