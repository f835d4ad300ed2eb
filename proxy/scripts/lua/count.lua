-- Runs HINCRBY as add.lua does, and returns a status instead of the integer, which would lose digits in Lua.
-- uses: has, index, now, discard, overdue, passed, settle, renew, run
-- KEYS: key, its shadow, the index
-- ARGV: as one argument the positions in ARGV of the first and last member and the step; the client's request
-- Result: the request's own, as a status
-- Complexity: O(log n), plus the request's own
local key, shadow, index = KEYS[1], KEYS[2], KEYS[3]
local place = tonumber(ARGV[1]:match('%d+'))
if call('exists', shadow) == 1 then
  settle(key, shadow, index)
  renew(key, shadow, index, place, place, 1)
end
local reply = run(2)
if type(reply) ~= 'number' then return reply end
if math.abs(reply) < 2 ^ 53 then return {ok = string.format('%.0f', reply)} end
local exact = redis.pcall('hmget', key, ARGV[place])
return {ok = failed(exact) and string.format('%.0f', reply) or exact[1]}
