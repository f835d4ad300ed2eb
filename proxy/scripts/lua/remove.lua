-- Runs a command that removes members, and voids the deadlines of the removed members.
-- uses: has, index, now, discard, overdue, passed, settle, void, run
-- KEYS: key, its shadow, the index
-- ARGV: as one argument the positions in ARGV of the first and last member and the step; the client's request
-- Result: the request's own
-- Complexity: O(log n) for each member (O(n) for a list), plus the request's own
local key, shadow, index = KEYS[1], KEYS[2], KEYS[3]
local first, last, step = ARGV[1]:match('(%d+) (%d+) (%d+)')
if call('exists', shadow) == 0 then return run(2, 2) end
settle(key, shadow, index)
local kind, forgotten = call('type', key).ok, false
for position = first + 0, last + 0, step + 0 do
  forgotten = forget(kind, key, shadow, ARGV[position]) or forgotten
end
if forgotten then refresh(key, shadow, index) end
return run(2, 2, function()
  if call('exists', shadow) == 0 then return end
  kind = call('type', key).ok
  if kind == 'none' then return drop(key, shadow, index) end
  for position = first + 0, last + 0, step + 0 do
    void(kind, key, shadow, ARGV[position])
  end
end)
