-- Prepares for keys that are about to arrive from another cluster node, followed by their shadows: drops the deadlines
-- that earlier keys of these names have left here. A key cannot arrive if a key of its name is here, unless it replaces
-- that key. If it cannot arrive, its shadow must not arrive either. So this creates a shadow here, with one void
-- deadline, which keeps the arriving shadow out.
-- uses: index
-- KEYS: each key followed by its shadow and its index
-- ARGV: for each key, 1 if it replaces an existing one
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
