-- Removes the shadows of keys that no longer exist. Their deadlines are void, and must not reach a new key at the
-- cluster node to which the slot is being moved.
-- uses: index
-- KEYS: each key followed by its shadow and its index
-- Result: how many keys did not exist
-- Complexity: O(k log n) for k keys; shadows are freed lazily
local gone = 0
for position = 1, #KEYS, 3 do
  local kind = call('type', KEYS[position]).ok
  if kind == 'none' or kind == 'string' then
    drop(KEYS[position], KEYS[position + 1], KEYS[position + 2])
    gone = gone + 1
  end
end
return gone
