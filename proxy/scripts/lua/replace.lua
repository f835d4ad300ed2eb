-- Runs a command that replaces a whole value, and voids all deadlines of its target.
-- uses: index, run, need
-- KEYS: the target, its shadow, the index
-- ARGV: the client's request
-- Result: the request's own
-- Complexity: the request's own; the shadow is freed lazily
need('unlink', KEYS[2])
need_index(KEYS[3], 'zrem', KEYS[3])
local reply = run(1)
if not failed(reply) then drop(KEYS[1], KEYS[2], KEYS[3]) end
return reply
