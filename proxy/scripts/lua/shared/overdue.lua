-- Removes a member that is due, in front of a client's request that adds it. Where somebody has asked to be told of what
-- expires, one that has been due for less than a second is left to `lapse`: the request was on its way at the deadline,
-- and counts as run before it. One that has been due for longer cannot have been seen by whoever sent the request, and
-- must not take away what it brings. Needs discard before it. O(1), O(n) for a list.
-- cleared: what was due has been removed in front of the requests of a transaction (most of it, and not where somebody has
-- asked to be told). They are to see one moment, so what has passed within the last 50 ms is there for them.
-- told_of: whether somebody has asked, in this database.
local function told_of(index) return call('exists', string.sub(index, 1, -6) .. 'events') == 1 end
local function overdue(kind, key, index, member, deadline, moment, cleared)
  if deadline > moment - 1000 and (told_of(index) or cleared and deadline > moment - 50) then return end
  discard(kind, key, {member})
end
