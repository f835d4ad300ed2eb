-- Prepares for keys that are about to arrive from another cluster node, followed by their shadows. Deadlines that
-- earlier keys of their names have left here are void. If a key cannot arrive, because one of its name is here, its
-- shadow must not arrive either: another shadow, with one void entry, bars its way.
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
