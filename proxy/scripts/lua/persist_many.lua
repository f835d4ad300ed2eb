-- Drops the deadlines of members, for many requests in their order: as persist.lua for each.
-- uses: has, index, now, discard, overdue, passed, each, segments
-- KEYS: the index, then each key followed by its shadow
-- ARGV: the keys in turn (see segments); then each request's member
-- Result: for each request 1 dropped; 0 there was none, or it has passed, or no such key
-- Complexity: O(log n) for each request
local moment = (now())
local function work(replies, key, shadow, first, count)
  local members, dropped, some = {}, {}, false
  for place = 1, count do members[place] = ARGV[first + place - 1] end
  local scores, size = score_each(shadow, members), #replies
  for place in pairs(passed_each(key, shadow, KEYS[1], members, scores, moment)) do scores[place] = false end
  local kind
  for place, member in ipairs(members) do
    local deadline = not dropped[member] and tonumber(scores[place] or nil)
    if deadline then
      local gone = redis.pcall('zrem', shadow, member)
      if failed(gone) then
        replies[size + place] = {err = told(gone.err, 'zrem')}
      else
        dropped[member], some = true, true
        kind = kind or call('type', key).ok
        local proper = kind == 'set' or kind == 'hash' or kind == 'zset' or kind == 'list'
        replies[size + place] = proper and (deadline > 0 or not has(kind, key, member)) and 1 or 0
      end
    else
      replies[size + place] = 0
    end
  end
  if some then refresh(key, shadow, KEYS[1]) end
end
return segments(ARGV[1], 1, 2, 1, work)
