-- Voids the deadlines of those of some members that are absent from their collection: they may be about to be added.
-- uses: has, index, mend, void
-- KEYS: key, its shadow, the index
-- ARGV: the database, or '' for that of the connection; 1 to keep what TTL tells of them, as the server may yet refuse
--   to add them, else 0; the members
-- Result: how many deadlines went
-- Complexity: O(log n) for each member (O(n) for a list)
if ARGV[1] ~= '' and redis.pcall('select', ARGV[1]).err then return 0 end
local key, shadow, index = KEYS[1], KEYS[2], KEYS[3]
mend(shadow)
if call('exists', shadow) == 0 then return 0 end
local kind, voided = call('type', key).ok, 0
if kind == 'none' or kind == 'string' then
  voided = call('zcard', shadow)
  drop(key, shadow, index)
  return voided
end
for position = 3, #ARGV do
  local member = ARGV[position]
  if ARGV[2] == '1' then
    if void(kind, key, shadow, member) then voided = voided + 1 end
  elseif call('zscore', shadow, member) and not has(kind, key, member) then
    voided = voided + call('zrem', shadow, member)
  end
end
if voided > 0 then refresh(key, shadow, index) end
return voided
