-- Runs RENAME or RENAMENX: deadlines move with their key, those of an overwritten key are void.
-- uses: has, index, now, discard, overdue, passed, settle, run, need
-- KEYS: source, its shadow, target, its shadow, the index
-- ARGV: the client's request
-- Result: the request's own
-- Complexity: O(log n) for n keys in the index
need('exists', KEYS[2])
-- A user who may RENAMENX need not have permission for RENAME.
need(ARGV[1], KEYS[2], KEYS[4])
need('unlink', KEYS[4])
need_index(KEYS[5], 'zadd', 'xx', 0, KEYS[5])
need_index(KEYS[5], 'zrem', KEYS[5])
need_refresh(KEYS[4])
settle(KEYS[1], KEYS[2], KEYS[5])
settle(KEYS[3], KEYS[4], KEYS[5])
local reply = run(1)
if failed(reply) or reply == 0 or KEYS[1] == KEYS[3] then return reply end
if call('exists', KEYS[2]) == 1 then
  -- RENAME replaces it; to a cluster node whose slot is being moved, what is removed before would be elsewhere.
  if ARGV[1]:lower() == 'renamenx' then call('unlink', KEYS[4]) end
  call(ARGV[1], KEYS[2], KEYS[4])
  redis.pcall('zrem', KEYS[5], KEYS[1])
  refresh(KEYS[3], KEYS[4], KEYS[5])
else
  drop(KEYS[3], KEYS[4], KEYS[5])
end
return reply
