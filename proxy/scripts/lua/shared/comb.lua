-- Voids, in a part of a shadow, the deadlines of members that are absent from their collection. Drops the whole shadow
-- if the collection no longer exists.
-- Drops deadlines that have been void for `lasting` ms (0: never). When it first finds a void deadline, it notes the
-- time in the fraction of the score. The mark of expire_members.lua is a fraction, too, so a void deadline with that
-- mark may be dropped at once. This does no harm: the commands that set such deadlines show no void deadlines.
-- Returns the next cursor; how many deadlines were checked (a higher number if a list took long); how many were
-- voided; how many were void before; and how much work that was, in deadlines checked. O(count log n).
-- A list is read once for all members in a part of the shadow, 20 elements for each deadline to check. The next call
-- continues: its cursor holds the part, the position in the list, and short hashes of members not found yet (`sign`).
-- Others may change the list meanwhile. So at the end of the list each member not found is searched for once more, in
-- calls of some 10 ms.
-- whole: whether to read a list at once. own: hand_over, if the server has its own commands for TTLs of fields.
local UNKNOWN = 1000000  -- assumed length of a list if the user may not run LLEN
-- COMPARED: how many elements LPOS may compare in a call; DEARER: how many in the time that one deadline takes.
local COMPARED, DEARER = 300000, 600
local function sign(member) return redis.sha1hex(member):sub(1, 10) end
-- sought: members, as keys. Returns where to go on reading (-1: the end), and whether the whole list has been read.
local function read_list(key, sought, left, from, width, size)
  local began, last = from, math.min(size, from + width)
  while from < last and left > 0 do
    local page = redis.pcall('lrange', key, from, math.min(from + 999, last - 1))
    if failed(page) then return -1, false end  -- no permission: search for each member
    for _, element in ipairs(page) do
      if sought[element] then sought[element], left = nil, left - 1 end
    end
    from = from + #page
  end
  return (from >= size or left == 0) and -1 or from, began == 0 and from >= size
end
-- members: those in the part of the shadow. Returns where to go on reading, with the hashes of members not found yet,
-- or nothing at the end; how many deadlines were voided; the cost in deadlines.
local function comb_list(key, shadow, members, from, signs, width)
  local able, sought, left, voided, work = redis.acl_check_cmd, {}, 0, 0, 0
  able = not able or able('lrange', key, 0, 0) and able('llen', key)
  local size = able and redis.pcall('llen', key)
  if type(size) ~= 'number' then size, from = UNKNOWN, -1 end
  local unmet = signs and {}
  for one in (signs or ''):gmatch('%x%x%x%x%x%x%x%x%x%x') do unmet[one] = true end
  for _, member in ipairs(members) do
    if not unmet or unmet[sign(member)] then sought[member], left = true, left + 1 end
  end
  local whole = width == math.huge
  local complete, room = false, whole and left or math.max(1, math.floor(COMPARED / size))
  if from >= 0 then
    local began = from
    from, complete = read_list(key, sought, left, from, width, size)
    work = math.floor(math.min(width, size - math.min(size, began)) / 20)
    room = (complete or whole) and left or 0
  end
  local rest = {}
  for _, member in ipairs(members) do
    if sought[member] then
      if room > 0 then
        if void('list', key, shadow, member, complete) then voided = voided + 1 end
        work = work + (complete and 1 or math.floor(size / DEARER))
        room = room - 1
      else
        rest[#rest + 1] = sign(member)
      end
    end
  end
  return rest[1] and from .. ' ' .. table.concat(rest), voided, work
end
local function comb(key, shadow, index, cursor, count, lasting, whole, own)
  local voided = 0
  mend(shadow)
  -- If there is nothing to void, write nothing: the server may refuse every write at present.
  if call('exists', shadow) == 0 then return '0', 1, 0, 0, 1 end
  local kind = call('type', key).ok
  if kind == 'none' or kind == 'string' then
    voided = call('zcard', shadow)
    drop(key, shadow, index)
    return '0', 1, voided, 0, 1
  end
  local moment, step, aged = now(), lasting / 3, 0
  -- The fractions 1/64 to 63/64 take turns, each for a third of `lasting`. A deadline so far ahead that its score has
  -- no room for a fraction is dropped at once.
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
  local at, as_many, from, signs = cursor:match('^(%d+) (%d+) (%-?%d+) (%x+)$')
  local width = whole and math.huge or 20 * count
  at, as_many = at or cursor, as_many or count
  local page, elements, early = call('zscan', shadow, at, 'count', as_many), kind == 'list' and {}, {}
  for position = 1, #page[2], 2 do
    local member, score = page[2][position], tonumber(page[2][position + 1])
    if elements and score > 0 then
      elements[#elements + 1] = member
    elseif not elements and void(kind, key, shadow, member) then
      voided = voided + 1
    elseif step > 0 and score < 0 and not signs then
      age(member, score)
      aged = aged + 1
    elseif own and kind == 'hash' and score % 1 == 0.5 then
      early[#early + 1] = member
    end
  end
  if early[1] then own(key, shadow, index, early, moment) end
  if aged > 0 then refresh(key, shadow, index) end
  local seen, work, further = #page[2] / 2, #page[2] / 2, nil
  if elements and elements[1] then
    further, voided, work = comb_list(key, shadow, elements, tonumber(from or 0), signs, width)
    seen = math.max(signs and 1 or seen, math.floor(work / 5))
    work = math.max(work, signs and 1 or #page[2] / 2)
  end
  return further and at .. ' ' .. as_many .. ' ' .. further or page[1], seen, voided, aged, work
end
