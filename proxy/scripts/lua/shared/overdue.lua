-- Removes a due member in front of a client's request that adds it. If the database has rules for events, a member that
-- has been due for less than a second is left to `lapse`: the request was under way at the deadline, and counts as run
-- before it. One that has been due for longer must not take the new member with it. Needs discard before it. O(1), O(n)
-- for a list.
-- cleared: due members were removed in front of the requests of a transaction (most of them, and not with rules for
-- events). These must all see the same moment, so deadlines within the last 50 ms do not count yet.
-- told_of: whether this database has rules for events.
local function told_of(index) return call('exists', string.sub(index, 1, -6) .. 'events') == 1 end
local function overdue(kind, key, index, member, deadline, moment, cleared)
  if deadline > moment - 1000 and (told_of(index) or cleared and deadline > moment - 50) then return end
  discard(kind, key, {member})
end
