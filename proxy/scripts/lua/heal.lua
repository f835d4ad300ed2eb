-- Corrects the index from the shadows of some keys; writes only if the index is wrong.
-- uses: index, mend
-- KEYS: the index, then each key followed by its shadow
-- ARGV: the database
-- Result: keys for which the index was wrong
-- Complexity: O(log n) for each key
if redis.pcall('select', ARGV[1]).err then return {} end
local index, healed = KEYS[1], {}
mend(index)
for position = 2, #KEYS, 2 do
  local key, shadow = KEYS[position], KEYS[position + 1]
  mend(shadow)
  local before, earliest = call('zscore', index, key) or nil, first_of(shadow)
  if (before and tonumber(before)) ~= (earliest and tonumber(earliest)) then
    refresh(key, shadow, index)
    healed[#healed + 1] = key
  end
end
return healed
