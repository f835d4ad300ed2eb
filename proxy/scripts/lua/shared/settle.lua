-- Removes due members from a key in front of the client's request that a script runs. Not if they were `cleared` in front
-- of the requests of a transaction, which must all see the same moment. Needs index, now, discard, overdue and passed
-- before it. Returns whether it found that no members are due. O(log n) for each member removed (O(n) in a list for all
-- of them): up to 2,000 of each key, and further ones up to 20,000 in a call (some 20 ms; up to 2,000 if there are rules
-- for events). If it leaves any, it leaves as many as two thousand: see `within`.
local room = 20000
-- For t
room = 2000
-- For all
local function settle(key, shadow, index, cleared, last)
  if cleared then return end
  local due = redis.pcall('zrangebyscore', shadow, '(0', now(), 'limit', 0, 2000)
  if not due[1] or last and room <= 0 and due[2000] then return not due[1] and not failed(due) end
  local kind = call('type', key).ok
  -- For L
  if last and kind == 'list' and due[2000] then return end
  -- For n
  -- Of a list, which is not of the request's type, only few: each costs a scan.
  if kind == 'list' then due = {unpack(due, 1, 10)} end
  -- For all
  passed(kind, key, shadow, index, due)
  room = room - #due
  -- If the first one is the same as before, the user may not remove it.
  if due[2000] and due[1] ~= last then settle(key, shadow, index, cleared, due[1]) end
end
