-- Reads a page of one database's index, earliest deadline first.
-- uses: sorted
-- KEYS: the index
-- ARGV: the database; the deadline in ms to begin at; how many keys to skip; how many keys to read
-- Result: keys, each followed by its deadline in ms
-- Reads only
-- Complexity: O(log n + skipped + read)
if redis.pcall('select', ARGV[1]).err or not sorted(KEYS[1]) then return {} end
return call('zrangebyscore', KEYS[1], ARGV[2], '+inf', 'withscores', 'limit', ARGV[3], ARGV[4])
