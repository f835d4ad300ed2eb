-- Runs COPY. The members of the copy get the deadlines of the original.
-- uses: has, index, now, discard, overdue, passed, settle, run, need
-- KEYS: source, its shadow, target, its shadow, the index
-- ARGV: the target's database, or ''; then the client's request
-- Result: the request's own
-- Complexity: O(n) for n deadlines, plus the request's own O(n)
local database = ARGV[1]
local copy = {'copy', KEYS[2], KEYS[4]}
if database ~= '' then
  need('select', database)
  copy = {'copy', KEYS[2], KEYS[4], 'db', database}
end
copy[#copy + 1] = 'replace'
need(unpack(copy))
need('unlink', KEYS[4])
need_index(KEYS[5], 'zadd', 'xx', 0, KEYS[5])
need_index(KEYS[5], 'zrem', KEYS[5])
need_refresh(KEYS[4])
settle(KEYS[1], KEYS[2], KEYS[5])
if database == '' then settle(KEYS[3], KEYS[4], KEYS[5]) end
local reply = run(2)
if reply ~= 1 then return reply end
local copied = call(unpack(copy))
if database ~= '' then call('select', database) end
if copied == 0 then call('unlink', KEYS[4]) end
refresh(KEYS[3], KEYS[4], KEYS[5])
return reply
