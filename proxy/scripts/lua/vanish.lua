-- Runs a command that may remove collections (DEL, SET …), and voids all deadlines of the removed collections.
-- uses: has, index, now, discard, overdue, passed, settle, run
-- KEYS: the index, then each key followed by its shadow
-- ARGV: the client's request
-- Result: the request's own
-- Complexity: O(log n) for each key, plus the request's own; shadows are freed lazily
for position = 2, #KEYS, 2 do settle(KEYS[position], KEYS[position + 1], KEYS[1]) end
return run(1, nil, function()
  for position = 2, #KEYS, 2 do
    local kind = call('type', KEYS[position]).ok
    if kind == 'none' or kind == 'string' then drop(KEYS[position], KEYS[position + 1], KEYS[1]) end
  end
end)
