-- Removes a member that is due, in front of a client's request that adds it. Where somebody has asked to be told of what
-- expires, one that has been due for less than a second is left to `lapse`: the request was on its way at the deadline,
-- and counts as run before it. One that has been due for longer cannot have been seen by whoever sent the request, and
-- must not take away what it brings. Needs discard before it. O(1), O(n) for a list.
local function overdue(kind, key, index, member, deadline, moment)
  if deadline > moment - 1000 and call('exists', string.sub(index, 1, -6) .. 'events') == 1 then return end
  discard(kind, key, {member})
end
