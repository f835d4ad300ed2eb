-- Runs before and after a command that replaces a whole hash, within a transaction, because no script may run that
-- command. The first call puts a field into the hash. If the second call does not find the field, the hash has been
-- replaced, and all deadlines are void.
-- uses: index
-- KEYS: key, its shadow, the index
-- ARGV: the field, with a unique name; 'front' or 'behind'
-- Result: nothing
-- Complexity: O(1); the shadow is freed lazily
local key, shadow, field = KEYS[1], KEYS[2], ARGV[1]
if call('exists', shadow) == 1 and call('type', key).ok == 'hash' then
  if ARGV[2] == 'front' then
    call('hset', key, field, '')
  elseif call('hdel', key, field) == 0 then
    drop(key, shadow, KEYS[3])
  end
end
