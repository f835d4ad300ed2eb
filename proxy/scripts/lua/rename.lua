-- Runs RENAME or RENAMENX. Deadlines move with their key; those of an overwritten key become void.
-- uses: has, index, now, discard, overdue, passed, settle, run, need
-- KEYS: source, its shadow, target, its shadow, the index
-- ARGV: the client's request
-- Result: the request's own
-- Complexity: O(log n) for n keys in the index
need('exists', KEYS[2])
-- Use the client's own command: a user with permission for RENAMENX may have none for RENAME.
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
  -- RENAME replaces the target's shadow. Do not remove that shadow first: while its slot is being moved, a cluster node
  -- would assume that it is at the other node.
  if ARGV[1]:lower() == 'renamenx' then call('unlink', KEYS[4]) end
  call(ARGV[1], KEYS[2], KEYS[4])
  redis.pcall('zrem', KEYS[5], KEYS[1])
  refresh(KEYS[3], KEYS[4], KEYS[5])
else
  drop(KEYS[3], KEYS[4], KEYS[5])
end
return reply
