-- Runs a command that adds members, after voiding the deadlines of those that are absent: they begin a new life. What is
-- due goes first: the request may have been under way while a deadline passed.
-- uses: has, index, now, discard, overdue, run
-- KEYS: key, its shadow, the index
-- ARGV: positions in ARGV of the first member and of the last, and the step between them, in one; the client's request
-- Result: the request's own
-- Complexity: O(log n) for each member, beside the request's own (O(n) for a list)
local key, shadow, index = KEYS[1], KEYS[2], KEYS[3]
local first, last, step = ARGV[1]:match('(%d+) (%d+) (%d+)')
if call('exists', shadow) == 1 then
  local kind = call('type', key).ok
  if kind == 'none' or kind == 'string' then
    drop(key, shadow, index)
  else
    local void, moment = false, nil
    for position = tonumber(first), tonumber(last), tonumber(step) do
      local member = ARGV[position]
      local deadline = call('zscore', shadow, member)
      if deadline and tonumber(deadline) > 0 then
        moment = moment or now()
        if tonumber(deadline) <= moment then overdue(kind, key, index, member, tonumber(deadline), moment) end
      end
      -- A void one of a member that is there again is an earlier life's, and tells nothing any more.
      if deadline and (tonumber(deadline) < 0 or not has(kind, key, member)) then
        call('zrem', shadow, member)
        void = true
      end
    end
    if void then refresh(key, shadow, index) end
  end
end
return run(2)
