-- Tells how long members have still to live, for many requests in their order: as ttl.lua for each.
-- uses: has, now, alive, each, segments
-- KEYS: each key followed by its shadow
-- ARGV: the unit of the results in milliseconds (1000 or 1); the keys in turn (see segments); then each request's member
-- Result: for each request -2 no such key; -1 no deadline; else the time left, rounded to the nearest unit
-- Reads only
-- Complexity: O(1) for each request
local unit, moment = tonumber(ARGV[1]), (now())
local function work(replies, key, shadow, first, count)
  local kind = call('type', key).ok
  local members = {}
  for place = 1, count do members[place] = ARGV[first + place - 1] end
  local scores = kind ~= 'none' and alive(kind, key, shadow, moment) and score_each(shadow, members)
  local proper = kind == 'set' or kind == 'hash' or kind == 'zset' or kind == 'list'
  for place = 1, count do
    local left = -2
    if scores then
      local deadline = proper and tonumber(scores[place] or nil)
      if deadline and deadline < 0 then deadline = not has(kind, key, members[place]) and math.floor(-deadline) end
      left = deadline and deadline - moment or -1
      left = left <= 0 and -1 or math.floor((left + unit / 2) / unit)
    end
    members[place] = left
  end
  for place = 1, count do replies[#replies + 1] = members[place] end
end
return segments(ARGV[2], 0, 3, 1, work)
