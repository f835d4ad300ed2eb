-- Removes members that are due, in front of a client's request about them. Where somebody has asked to be told of what
-- expires, those that have been due for less than a second are left to `lapse`: the request was on its way at the
-- deadline, and counts as run before it. Those that have been due for longer cannot have been seen by whoever sent the
-- request, and must not take away what it brings. `latest`: the last of their deadlines. Gives whether they have gone.
-- Needs discard before it. O(1) each, O(n) for each of a list.
local function overdue(kind, key, index, members, latest, moment)
  if latest > moment - 1000 and call('exists', string.sub(index, 1, -6) .. 'events') == 1 then return false end
  discard(kind, key, members)
  return true
end
