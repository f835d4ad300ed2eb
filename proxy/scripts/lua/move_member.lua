-- Runs a command that moves one member from a collection to another: its deadline stays behind, and is void.
-- uses: has, index, now, discard, overdue, passed, settle, void, run
-- KEYS: source, its shadow, target, its shadow, the index
-- ARGV: where the member is: 'member' and the member, or 'end' and its place in the source list (0 or -1); then the
--   client's request
-- Result: the request's own
-- Complexity: O(log n) (O(n) for lists)
local source, left, target, right, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local few = settle(source, left, index)
if source ~= target then few = settle(target, right, index) and few end
local member = ARGV[2]
if ARGV[1] == 'end' then
  member = redis.pcall('lindex', source, member)
  if type(member) ~= 'string' then return run(3) end
end
-- More may be due than has been removed.
local function expire(key, shadow)
  local deadline, moment = tonumber(call('zscore', shadow, member) or nil), now()
  if not deadline or deadline <= 0 or deadline > moment then return end
  local kind = call('type', key).ok
  overdue(kind, key, shadow, index, member, deadline, moment)
  if has(kind, key, member) then return end
  call('zrem', shadow, member)
  refresh(key, shadow, index)
end
if not few then
  expire(source, left)
  expire(target, right)
end
local function arrived() return has(call('type', target).ok, target, member) end
local stale = source ~= target and call('zscore', right, member) and not arrived()
if forget(call('type', source).ok, source, left, member) then refresh(source, left, index) end
local reply = run(3)
if stale and arrived() then
  call('zrem', right, member)
  refresh(target, right, index)
end
void(call('type', source).ok, source, left, member)
return reply
