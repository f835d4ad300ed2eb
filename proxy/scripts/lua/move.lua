-- Runs MOVE: the deadlines go with their key to the other database.
-- uses: index, run
-- KEYS: key, its shadow, the index
-- ARGV: the other database; then the client's request
-- Result: the request's own
-- Complexity: O(log n) for n keys in the index (O(m) for m deadlines where the other database has leftovers of them)
local reply = run(2)
if reply ~= 1 then return reply end
local key, shadow, index = KEYS[1], KEYS[2], KEYS[3]
local carried = redis.call('exists', shadow) == 1
if carried and redis.call('move', shadow, ARGV[1]) == 0 then
  redis.call('copy', shadow, shadow, 'db', ARGV[1], 'replace')
  redis.call('unlink', shadow)
end
redis.call('zrem', index, key)
redis.call('select', ARGV[1])
if not carried then redis.call('unlink', shadow) end
refresh(key, shadow, index)
return reply
