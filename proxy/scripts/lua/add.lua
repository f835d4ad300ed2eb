-- Runs a command that adds members. First it removes due members, because a deadline may have passed while the request
-- was under way, and voids the deadlines of absent members, which begin a new life.
-- uses: has, index, now, discard, overdue, passed, settle, renew, run
-- KEYS: key, its shadow, the index
-- ARGV: as one argument the positions in ARGV of the first and last member and the step, then ' over' if the command
--   overwrites members; then the client's request
-- Result: the request's own
-- Complexity: O(log n) for each member (O(n) for a list), plus the request's own
local key, shadow, index = KEYS[1], KEYS[2], KEYS[3]
local first, last, step, overwrites = ARGV[1]:match('(%d+) (%d+) (%d+)(.*)')
local over
if call('exists', shadow) == 1 then
  settle(key, shadow, index)
  over = renew(key, shadow, index, tonumber(first), tonumber(last), tonumber(step))
end
return run(2, nil, function()
  if over and over[1] and overwrites ~= '' then
    call('zrem', shadow, unpack(over))
    refresh(key, shadow, index)
  end
end)
