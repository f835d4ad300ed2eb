-- Does the same as void_page.lua for several keys in turn, until it has checked enough deadlines.
-- uses: has, index, now, void, mend, hand_over, comb
-- KEYS: the index, then each key followed by its shadow
-- ARGV: the database; about how many deadlines to check; after how many ms to drop void deadlines; 'own' if the server
--   has its own commands for TTLs of fields; for each key the cursor, '0' to begin
-- Result: for each key that was reached: the next cursor, how many were checked (more if the work was expensive), how
--   many were voided, how many were void before
-- Complexity: O(k + count log n) for k keys (in lists, 20 * count elements are read in all, or a few are searched for,
--   O(n) each)
local gone, left, done = redis.pcall('select', ARGV[1]).err, tonumber(ARGV[2]), {}
for number = 1, (#KEYS - 1) / 2 do
  if left <= 0 then break end
  local cursor, seen, voided, aged, work = '0', 1, 0, 0, 1
  if not gone then
    local key, shadow = KEYS[2 * number], KEYS[2 * number + 1]
    local own = ARGV[4] == 'own' and hand_over
    cursor, seen, voided, aged, work =
      comb(key, shadow, KEYS[1], ARGV[4 + number], left, tonumber(ARGV[3]), false, own)
  end
  done[#done + 1] = {cursor, seen, voided, aged}
  left = left - work
end
return done
