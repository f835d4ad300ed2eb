-- Sees to members whose deadlines have passed while a request about them was under way, in one key: whoever is told that
-- one has gone must not leave it for others to see. What the user may not remove is left to the sweeper. Needs index and
-- overdue before it. O(log n) for each, O(n) for each of a list.
-- passed: of members that are due; `latest`: the last of their deadlines. Gives whether they have gone (see `overdue`).
-- passed_each: of those among some members, with their scores, that are due at a moment. Gives the places of those that
-- have gone, as keys.
local function passed(kind, key, shadow, index, members, latest, moment)
  local able, gone = pcall(function()
    if not overdue(kind, key, index, members, latest, moment) then return false end
    if call('exists', key) == 0 then
      drop(key, shadow, index)
    else
      call('zrem', shadow, unpack(members))
      refresh(key, shadow, index)
    end
    return true
  end)
  failure = nil
  return not able or gone
end
local function passed_each(key, shadow, index, members, scores, moment)
  local due, latest, places = {}, 0, {}
  for place, member in ipairs(members) do
    local deadline = tonumber(scores[place] or nil)
    if deadline and deadline > 0 and deadline <= moment then
      due[#due + 1], latest, places[place] = member, math.max(latest, deadline), true
    end
  end
  return due[1] and passed(call('type', key).ok, key, shadow, index, due, latest, moment) and places or {}
end
