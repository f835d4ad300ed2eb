-- Runs MOVE. Deadlines move with their key to the other database.
-- uses: has, index, now, discard, overdue, passed, settle, run, need
-- KEYS: key, its shadow, the index
-- ARGV: the other database; then the client's request
-- Result: the request's own
-- Complexity: O(log n) for n keys in the index (O(m) for m deadlines if the other database has a shadow of the key)
need('exists', KEYS[2])
need('move', KEYS[2], ARGV[1])
need('unlink', KEYS[2])
need('select', ARGV[1])
need_index(KEYS[3], 'zadd', 'xx', 0, KEYS[3])
need_index(KEYS[3], 'zrem', KEYS[3])
need_refresh(KEYS[2])
settle(KEYS[1], KEYS[2], KEYS[3])
local reply = run(2)
if reply ~= 1 then return reply end
local key, shadow, index = KEYS[1], KEYS[2], KEYS[3]
local carried = call('exists', shadow) == 1
if carried and call('move', shadow, ARGV[1]) == 0 then
  call('copy', shadow, shadow, 'db', ARGV[1], 'replace')
end
call('unlink', shadow)
redis.pcall('zrem', index, key)
call('select', ARGV[1])
if not carried then call('unlink', shadow) end
refresh(key, shadow, index)
return reply
