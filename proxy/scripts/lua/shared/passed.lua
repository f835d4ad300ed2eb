-- Removes members of one key whose deadlines have passed while a request on them was under way: once a client learns
-- that a member is gone, no other client may see that member. If the user lacks permission, or notes cannot be left
-- (`owed`), only `lapse` removes the members. From a list that cannot be read in one pass (`seek`) only ten are
-- removed, because each takes a scan. Needs index, discard and overdue before it. O(log n) for each, O(n) in a list.
-- passed: removes due members; returns whether they count as gone. To keep those that do not count yet (`within`), it
-- needs the latest of these members' deadlines, and the clock.
-- passed_each: removes the due ones among some members, given their scores; returns their positions, as keys.
local function passed(kind, key, shadow, index, members, latest, moment)
  local able, alive = pcall(function()
    -- For s
    if latest and within(shadow, latest, moment) then return true end
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
