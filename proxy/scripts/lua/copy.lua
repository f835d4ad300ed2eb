-- Runs COPY: the copy's members have the deadlines of the original's.
-- uses: index, run, need
-- KEYS: source, its shadow, target, its shadow, the index
-- ARGV: the target's database, or ''; then the client's request
-- Result: the request's own
-- Complexity: O(n) for n deadlines, beside the request's own O(n)
local database = ARGV[1]
if database ~= '' then need('select', database) end
need('unlink', KEYS[2])
need('zrangebyscore', KEYS[2], 0, 0)
need('zrevrangebyscore', KEYS[2], 0, 0)
local reply = run(2)
if reply ~= 1 then return reply end
if database == '' then
  if call('copy', KEYS[2], KEYS[4], 'replace') == 0 then call('unlink', KEYS[4]) end
else
  local copied = call('copy', KEYS[2], KEYS[4], 'db', database, 'replace')
  call('select', database)
  if copied == 0 then call('unlink', KEYS[4]) end
end
refresh(KEYS[3], KEYS[4], KEYS[5])
return reply
