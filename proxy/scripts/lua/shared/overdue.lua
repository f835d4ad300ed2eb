-- Removes a member that is due, in front of a client's request that adds it. Where somebody has asked to be told of what
-- expires, that is left to `lapse`: the request counts as run before the deadline, as it was sent before. Needs discard
-- before it. O(1), O(n) for a list.
local function overdue(kind, key, index, member)
  if call('exists', string.sub(index, 1, -6) .. 'events') == 0 then discard(kind, key, {member}) end
end
