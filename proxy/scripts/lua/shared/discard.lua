-- Removes members (at most a few thousand: they are unpacked) from a collection, and returns how many of them it had.
-- O(1) for each, O(log n) in a sorted set; from a list it removes every occurrence, O(n) for each. This is a removal by
-- request, without events; `lapse` removes expired members.
-- seek: finds many elements of a list in one pass. `discard` then overwrites all with the shortest of them (LSET), so
-- that one scan (LREM) removes all, and the list never has an element that no client put there. `counts` of the result:
-- how often each element occurs. Returns nothing for few elements, or without permission. O(n).
-- For L
local sought = {}
local function seek(kind, key, members)
  if sought.members == members then return sought end
  local may = redis.acl_check_cmd
  if kind ~= 'list' or not members[11] then return end
  if may and not (may('lrange', key, 0, 0) and may('lset', key, 0, '')) then return end
  local counts, places, elements, size, one, from, width = {}, {}, {}, 0, nil, 0, 100
  for _, member in ipairs(members) do counts[member] = 0 end
  repeat
    local page, bytes = redis.pcall('lrange', key, from, from + width - 1), 0
    if failed(page) then return end
    for place, element in ipairs(page) do
      bytes = bytes + #element
      local count = counts[element]
      if count then
        counts[element], size = count + 1, size + 1
        places[size], elements[size] = from + place - 1, element
        if not one or #element < #one or #element == #one and count >= counts[one] then one = element end
      end
    end
    local last = #page < width
    from, width = from + width, math.max(1, math.min(1000, 8 * width, math.floor(width * 1000000 / math.max(1, bytes))))
  until last
  -- Before Redis 7.0 the only test of the permission is to run LSET, here so that it changes nothing.
  if not one or not failed(redis.pcall('lset', key, places[size], elements[size])) then
    sought = {members = members, counts = counts, places = places, elements = elements, one = one}
    return sought
  end
end
-- For all
local function discard(kind, key, members)
  if kind == 'set' then return call('srem', key, unpack(members))
  elseif kind == 'hash' then return call('hdel', key, unpack(members))
  elseif kind == 'zset' then return call('zrem', key, unpack(members))
  end
  local count = 0
  -- For L
  local found = seek(kind, key, members)
  if found then
    sought = {}
    for number, place in ipairs(found.places) do
      if found.elements[number] ~= found.one then call('lset', key, place, found.one) end
    end
    if found.one then call('lrem', key, 0, found.one) end
    for _, times in pairs(found.counts) do count = count + math.min(1, times) end
    return count
  end
  -- For all
  if kind == 'list' then
    for _, member in ipairs(members) do count = count + math.min(1, call('lrem', key, 0, member)) end
  end
  return count
end
