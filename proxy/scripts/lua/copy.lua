-- Runs COPY: the copy's members have the deadlines of the original's.
-- uses: index, run
-- KEYS: source, its shadow, target, its shadow, the index
-- ARGV: the target's database, or ''; then the client's request
-- Result: the request's own
-- Complexity: O(n) for n deadlines, beside the request's own O(n)
local reply, database = run(2), ARGV[1]
if reply ~= 1 then return reply end
if database == '' then
  if redis.call('copy', KEYS[2], KEYS[4], 'replace') == 0 then redis.call('unlink', KEYS[4]) end
else
  local copied = redis.call('copy', KEYS[2], KEYS[4], 'db', database, 'replace')
  redis.call('select', database)
  if copied == 0 then redis.call('unlink', KEYS[4]) end
end
refresh(KEYS[3], KEYS[4], KEYS[5])
return reply
