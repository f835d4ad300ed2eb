-- Removes due members from a key in front of the client's request that a script runs. Not if they were `cleared` in front
-- of the requests of a transaction, which must all see the same moment. Needs index, now, discard, overdue and passed
-- before it. Returns whether it found that no members are due. O(log n) for each member removed (O(n) in a list), some
-- thousand at most.
local function settle(key, shadow, index, cleared)
  for _ = 1, cleared and 0 or 4 do
    local due = redis.pcall('zrangebyscore', shadow, '(0', now(), 'limit', 0, 500)
    if not due[1] then return not failed(due) end
    passed(call('type', key).ok, key, shadow, index, due)
    if #due < 500 then return end
  end
end
