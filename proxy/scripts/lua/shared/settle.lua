-- Removes due members from a key before the script runs the client's request. Needs index, now, discard, overdue and
-- passed before it. Returns whether it found that no members are due. O(log n) for each member removed (O(n) in a list
-- for all of them). Removes up to 2,000 members of each key, and goes on with further ones of that key until the script
-- has removed 20,000 in all (some 20 ms; 2,000 if there are rules for events). If these limits leave due members, they
-- leave 2,000 or more; `within` relies on that.
local room = 20000
-- For t
room = 2000
-- For all
local function settle(key, shadow, index, last)
  local due = redis.pcall('zrangebyscore', shadow, '(0', now(), 'limit', 0, 2000)
  if not due[1] or last and room <= 0 and due[2000] then return not due[1] and not failed(due) end
  local kind = call('type', key).ok
  -- For L
  if last and kind == 'list' and due[2000] then return end
  -- For n
  -- The request's command is not one for lists. From a list remove only a few elements, because each takes a scan.
  if kind == 'list' then due = {unpack(due, 1, 10)} end
  -- For all
  passed(kind, key, shadow, index, due)
  room = room - #due
  -- Stop if the first due member is the same as in the last round: the user may not remove it.
  if due[2000] and due[1] ~= last then settle(key, shadow, index, due[1]) end
end
-- For s
-- The script's keys were cleared (`Terms.cleared`): nothing counts as due, unless it has been for longer than `grace`,
-- or so much is that some may have been left.
local settle_all = settle
local function settle(key, shadow, index)
  local moment = now()
  local first = redis.pcall('zrangebyscore', shadow, '(0', moment, 'withscores', 'limit', 0, 1)
  if failed(first) or first[1] and not within(shadow, tonumber(first[2]), moment) then
    return settle_all(key, shadow, index)
  end
  return true
end
