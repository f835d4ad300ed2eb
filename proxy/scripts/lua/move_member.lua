-- Runs a command that moves one member from a collection to another: its deadline stays behind, and is void.
-- uses: has, index, now, discard, overdue, passed, settle, void, run
-- KEYS: source, its shadow, target, its shadow, the index
-- ARGV: where the member is: 'member' and the member, or 'end' and its place in the source list (0 or -1); then the
--   client's request
-- Result: the request's own
-- Complexity: O(log n) (O(n) for lists)
local source, left, target, right, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
settle(source, left, index)
if source ~= target then settle(target, right, index) end
local member = ARGV[2]
if ARGV[1] == 'end' then
  member = redis.pcall('lindex', source, member)
  if type(member) ~= 'string' then return run(3) end
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
