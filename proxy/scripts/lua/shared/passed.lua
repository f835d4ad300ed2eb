-- Removes members of one key whose deadlines have passed while a request on them was under way: if its client is told
-- that one is gone, others must not see it. For a user without permission, or if they cannot be `owed`, only `lapse`
-- removes them, and of a list only ten if it cannot be read at once (`seek`): others must not wait for a scan of it for
-- each. Needs index, discard and overdue before it. O(log n) for each, O(n) in a list.
-- passed: for due members; returns whether they count as gone. For a key that was `cleared` (see overdue), with the
-- latest of their deadlines and the clock.
-- passed_each: the positions, as keys, of the due ones among some members, with their scores and the moment.
local function passed(kind, key, shadow, index, members, cleared, latest, moment)
  local able, alive = pcall(function()
    if cleared and within(shadow, latest, moment) then return true end
    -- For L
    if kind == 'list' and not seek(kind, key, members) then members = {unpack(members, 1, 10)} end
    -- For all
    if not owed(kind, key, shadow, index, members) then return false end
    discard(kind, key, members)
    if call('exists', key) == 0 then
      drop(key, shadow, index)
    else
      call('zrem', shadow, unpack(members))
      refresh(key, shadow, index)
    end
  end)
  failure = nil
  return not (able and alive)
end
local function passed_each(key, shadow, index, members, scores, moment)
  local due, places = {}, {}
  for place, member in ipairs(members) do
    local deadline = tonumber(scores[place] or nil)
    if deadline and deadline > 0 and deadline <= moment then due[#due + 1], places[place] = member, true end
  end
  if due[1] then passed(call('type', key).ok, key, shadow, index, due) end
  return places
end
