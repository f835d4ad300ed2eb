-- Runs one of the server's own commands for TTLs of fields. First it removes due members, voids the deadlines of absent
-- fields that the command sets, and converts deadlines from before the server had such commands into native TTLs
-- (shared/hand_over.lua).
-- uses: has, index, now, discard, overdue, passed, settle, renew, hand_over, run
-- KEYS: key, its shadow, the index
-- ARGV: as one argument, for a command that sets fields, the positions in ARGV of the first and last field and the
--   step, else ''; then the client's request
-- Result: the request's own
-- Complexity: the request's own, plus O(log n) for each of its arguments, and for each member that is due
local key, shadow, index = KEYS[1], KEYS[2], KEYS[3]
if call('exists', shadow) == 1 then
  settle(key, shadow, index)
  local first, last, step = ARGV[1]:match('(%d+) (%d+) (%d+)')
  if first then renew(key, shadow, index, tonumber(first), tonumber(last), tonumber(step)) end
  if call('type', key).ok == 'hash' then hand_over(key, shadow, index, {unpack(ARGV, 4)}, (now())) end
end
return run(2, 2)
