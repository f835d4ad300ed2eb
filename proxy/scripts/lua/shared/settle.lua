-- Removes due members from a key in front of the client's request that a script runs. Not if they were `cleared` in front
-- of the requests of a transaction, which must all see the same moment. Needs index, now, discard, overdue and passed
-- before it. Returns whether it found that no members are due. O(log n) for each member removed (O(n) in a list for all
-- of them), two thousand at most.
local function settle(key, shadow, index, cleared)
  if cleared then return end
  local due = redis.pcall('zrangebyscore', shadow, '(0', now(), 'limit', 0, 2000)
  if not due[1] then return not failed(due) end
  -- For n
  -- Of a list, which is not of the request's type, only few: each is a scan.
  if call('type', key).ok == 'list' then due = {unpack(due, 1, 10)} end
  -- For all
  passed(call('type', key).ok, key, shadow, index, due)
end
