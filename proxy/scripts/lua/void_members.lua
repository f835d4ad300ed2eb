-- Forgets the deadlines of those of some members that are absent from their collection: they are about to be added.
-- uses: has, index, mend
-- KEYS: key, its shadow, the index
-- ARGV: the database; then the members
-- Result: how many were forgotten
-- Complexity: O(log n) for each member (O(n) for a list)
if redis.pcall('select', ARGV[1]).err then return 0 end
local key, shadow, index = KEYS[1], KEYS[2], KEYS[3]
mend(shadow)
if call('exists', shadow) == 0 then return 0 end
local kind, forgotten = call('type', key).ok, 0
if kind == 'none' or kind == 'string' then
  forgotten = call('zcard', shadow)
  drop(key, shadow, index)
  return forgotten
end
for position = 2, #ARGV do
  local member = ARGV[position]
  if call('zscore', shadow, member) and not has(kind, key, member) then
    forgotten = forgotten + call('zrem', shadow, member)
  end
end
if forgotten > 0 then refresh(key, shadow, index) end
return forgotten
