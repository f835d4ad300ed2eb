-- Voids, in a part of a shadow, the deadlines of members that are absent from their collection; all of them at once, by
-- dropping the shadow, where there is no collection any more. Frees those that have been void for `lasting` ms: when it
-- meets a void one first, it notes the time in the fraction of the score (of ms); 0: never. (What a dialect has set,
-- expire_members.lua, has a fraction already: it may go at once, as no word of that dialect tells of it.)
-- Gives the next cursor of ZSCAN, how many deadlines were looked at, how many voided, and how many were void already.
-- O(count log n), of a list O(count n).
local function comb(key, shadow, index, cursor, count, lasting)
  local voided = 0
  mend(shadow)
  -- Where there is nothing to void nothing is written: the server may refuse every write at present.
  if call('exists', shadow) == 0 then return '0', 1, 0, 0 end
  local kind = call('type', key).ok
  if kind == 'none' or kind == 'string' then
    voided = call('zcard', shadow)
    drop(key, shadow, index)
    return '0', 1, voided, 0
  end
  local moment, step, aged = (now()), lasting / 3, 0
  -- Of 1/64 to 63/64, in turn, one for each third of that time. A deadline so far ahead that its score has no room for
  -- them is freed at once.
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
  local page = call('zscan', shadow, cursor, 'count', count)
  for position = 1, #page[2], 2 do
    local member, score = page[2][position], tonumber(page[2][position + 1])
    if void(kind, key, shadow, member) then
      voided = voided + 1
    elseif step > 0 and score < 0 then
      age(member, score)
      aged = aged + 1
    end
  end
  if aged > 0 then refresh(key, shadow, index) end
  return page[1], #page[2] / 2, voided, aged
end
