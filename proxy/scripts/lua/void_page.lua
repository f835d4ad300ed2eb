-- Voids, in a part of a shadow, the deadlines of members that are absent from their collection; all of them at once, by
-- dropping the shadow, where there is no collection any more. Frees those that have been void for long enough: when it
-- meets a void one first, it notes the time in the fraction of the score (of ms), which tells nothing else.
-- uses: has, index, now, void, mend
-- KEYS: key, its shadow, the index
-- ARGV: the database, or '' for that of the connection; the cursor of ZSCAN; how many deadlines to look at, about; after
--   how many ms void ones are freed (none: never)
-- Result: the next cursor, how many were looked at, how many voided
-- Complexity: O(count log n) (O(count n) for a list)
if ARGV[1] ~= '' and redis.pcall('select', ARGV[1]).err then return {'0', 1, 0} end
local key, shadow, voided = KEYS[1], KEYS[2], 0
mend(shadow)
-- Where there is nothing to void nothing is written: the server may refuse every write at present.
if call('exists', shadow) == 0 then return {'0', 1, 0} end
local kind = call('type', key).ok
if kind == 'none' or kind == 'string' then
  voided = call('zcard', shadow)
  drop(key, shadow, KEYS[3])
  return {'0', 1, voided}
end
local moment, step, changed = (now()), tonumber(ARGV[4] or 0) / 3, false
-- Of 1/64 to 63/64, in turn, one for each third of that time. A deadline so far ahead that its score has no room for them
-- is freed at once.
local function age(member, score)
  local deadline, present = math.floor(-score), math.floor(moment / step) % 63 + 1
  local noted = (-score - deadline) * 64
  if noted == 0 then
    local fits = (deadline + present / 64 - deadline) * 64 == present
    local marked = string.format('%.17g', -deadline - present / 64)
    if fits and not failed(redis.pcall('zadd', shadow, 'xx', marked, member)) then return end
  elseif (present - noted) % 63 < 4 then
    return
  end
  call('zrem', shadow, member)
end
local page = call('zscan', shadow, ARGV[2], 'count', ARGV[3])
for position = 1, #page[2], 2 do
  local member, score = page[2][position], tonumber(page[2][position + 1])
  if void(kind, key, shadow, member) then
    voided = voided + 1
  elseif step > 0 and score < 0 then
    age(member, score)
    changed = true
  end
end
if changed then refresh(key, shadow, KEYS[3]) end
return {page[1], #page[2] / 2, voided}
