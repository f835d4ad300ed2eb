-- Lists members of a key with their deadlines, some per call.
-- uses: has, now, alive, each, fits
-- KEYS: key, its shadow
-- ARGV: the cursor and the options of ZSCAN
-- Result: the next cursor; the members, each with its deadline in Unix ms; an error for a type that has no members
-- Reads only
-- Complexity: O(count log n) for each call; a list of n is read once, O(n + count), or up to 24 members are searched
--   for one by one, O(n). For a list of more than 100,000 elements a call returns few members, so that others do not
--   wait long.
local key, shadow, passed, found = KEYS[1], KEYS[2], now() - grace, {}
local kind = call('type', key).ok
if kind == 'none' or not alive(kind, key, shadow, passed) then return {'0', found} end
if not fits(kind, 'hash|set|zset|list') then return misfit('hash|set|zset|list') end
local options, length, searched = {unpack(ARGV)}, kind == 'list', nil
if length then
  length = may('llen', key) and redis.pcall('llen', key)
  if type(length) ~= 'number' then length = 1000000 end  -- the user may not run LLEN: treat it as a long list
end
-- ZSCAN returns a small shadow whole, whatever COUNT is. If that is too much for a long list, members are returned in
-- order of their hashes, and the cursor is the last one's hash, which is larger than any cursor of ZSCAN. If the shadow
-- has grown meanwhile, ZSCAN starts again.
local BEYOND, FEW, after, most = 4503599627370496, 1000, 0, math.huge
local function hashed(member) return BEYOND + tonumber(redis.sha1hex(member):sub(1, 12), 16) end
if length and #options[1] <= 16 and options[1]:match('^%d+$') and tonumber(options[1]) >= BEYOND then
  after = call('zcard', shadow) <= FEW and tonumber(options[1]) or 0
  options[1] = '0'
end
if length and (length > 100000 or not may('lrange', key, 0, 0)) then
  -- ZSCAN uses the last COUNT.
  local asked = 10
  for place = 2, #options - 1 do
    if options[place]:lower() == 'count' then asked = tonumber(options[place + 1]) or asked end
  end
  most = math.max(1, math.min(asked, 10, math.floor(1000000 / length)))
  options[#options + 1], options[#options + 2] = 'count', most
end
if after > 0 then options[#options + 1], options[#options + 2] = 'count', 100 * FEW end  -- the whole shadow at once
local page = call('zscan', shadow, unpack(options))
local members, deadlines, further = {}, {}, page[1]
for position = 1, #page[2], 2 do
  local deadline = math.ceil(page[2][position + 1])
  if deadline > passed then
    members[#members + 1], deadlines[#deadlines + 1] = page[2][position], deadline
  end
end
if after > 0 or #members > most and further == '0' and options[1] == '0' then
  local order, places = {}, {}
  for place, member in ipairs(members) do
    places[place] = hashed(member)
    if places[place] > after then order[#order + 1] = place end
  end
  table.sort(order, function(one, other) return places[one] < places[other] end)
  local some, theirs = {}, {}
  for number, place in ipairs(order) do
    if number > most and places[place] ~= places[order[number - 1]] then
      further = string.format('%.0f', places[order[number - 1]])
      break
    end
    some[number], theirs[number] = members[place], deadlines[place]
  end
  members, deadlines = some, theirs
end
-- LPOS compares 20 elements or more in the time in which a script reads one.
if length and #members <= 24 and may('lpos', key, '') then
  searched = {}
  for place, member in ipairs(members) do
    local where = redis.pcall('lpos', key, member)
    if failed(where) then searched = nil break end
    searched[place] = where ~= false
  end
end
-- A list is read once for all members.
for first = 1, #members, length and math.max(1, #members) or 500 do
  local some = length and members or {unpack(members, first, math.min(first + 499, #members))}
  for place, there in ipairs(searched or has_each(kind, key, some)) do
    if there then
      found[#found + 1], found[#found + 2] = some[place], string.format('%.0f', deadlines[first + place - 1])
    end
  end
end
return {further, found}
