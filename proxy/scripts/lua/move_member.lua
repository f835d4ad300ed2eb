-- Runs a command that moves one member from a collection to another. The deadline stays behind and becomes void.
-- uses: has, index, now, discard, overdue, passed, settle, void, run
-- KEYS: source, its shadow, target, its shadow, the index
-- ARGV: where the member is: 'member' and the member, or 'end' and its place in the source list (0 or -1); then the
--   client's request
-- Result: the request's own
-- Complexity: O(log n) (O(n) for lists, and for each of up to a hundred due elements at the end)
local source, left, target, right, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local few = settle(source, left, index)
if source ~= target then few = settle(target, right, index) and few end
local function named()
  if ARGV[1] == 'end' then return redis.pcall('lindex', source, ARGV[2]) end
  return ARGV[2]
end
local member = named()
if type(member) ~= 'string' then return run(3) end
-- Removes the member if it is due, because `settle` may have left it. Returns whether it has removed the member.
local function expire(key, shadow)
  local deadline, moment = tonumber(call('zscore', shadow, member) or nil), now()
  if not deadline or deadline <= 0 or deadline > moment then return false end
  local kind = call('type', key).ok
  overdue(kind, key, shadow, index, member, deadline, moment)
  if has(kind, key, member) then return false end
  call('zrem', shadow, member)
  refresh(key, shadow, index)
  return true
end
if not few then
  -- The next element at this end of the list may be due, too.
  local tries = 0
  while expire(source, left) and ARGV[1] == 'end' and tries < 100 do
    member, tries = named(), tries + 1
    if type(member) ~= 'string' then return run(3) end
  end
  expire(target, right)
end
local function arrived() return has(call('type', target).ok, target, member) end
local stale = source ~= target and call('zscore', right, member) and not arrived()
if forget(call('type', source).ok, source, left, member) then refresh(source, left, index) end
return run(3, nil, function()
  if stale and arrived() then
    call('zrem', right, member)
    refresh(target, right, index)
  end
  void(call('type', source).ok, source, left, member)
end)
