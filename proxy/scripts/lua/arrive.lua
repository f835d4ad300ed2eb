-- Makes way for keys that are about to come from another cluster node, and for their shadows behind them. Deadlines that
-- one of such a name has left here are void. If a key cannot come, because one is here, its shadow must not come either,
-- but stay with it: it meets one in which nothing is.
-- uses: index
-- KEYS: each key followed by its shadow and its index
-- ARGV: for each key, 1 where it is replaced if it is there
-- Result: nothing
-- Complexity: O(log n) for each key; shadows are freed lazily
for place = 1, #KEYS / 3 do
  local key, shadow, index = KEYS[3 * place - 2], KEYS[3 * place - 1], KEYS[3 * place]
  if ARGV[place] == '1' or call('type', key).ok == 'none' then
    drop(key, shadow, index)
  elseif call('exists', shadow) == 0 then
    call('zadd', shadow, -1, '')
  end
end
