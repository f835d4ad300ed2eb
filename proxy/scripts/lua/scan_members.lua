-- Lists members of a key with their deadlines, a part of them at each call.
-- uses: has, now, alive, each, fits
-- KEYS: key, its shadow
-- ARGV: the cursor and the options of ZSCAN
-- Result: the next cursor; the members, each with its deadline in Unix ms; an error for a type that has no members
-- Reads only
-- Complexity: O(count) for each call (a list of n is read for 500 members)
local key, shadow, moment, found = KEYS[1], KEYS[2], (now()), {}
local kind = call('type', key).ok
if kind == 'none' or not alive(kind, key, shadow, moment) then return {'0', found} end
if not fits(kind, 'hash|set|zset|list') then return misfit('hash|set|zset|list') end
local page = call('zscan', shadow, unpack(ARGV))
local members, deadlines = {}, {}
for position = 1, #page[2], 2 do
  local deadline = math.ceil(page[2][position + 1])
  if deadline > moment then
    members[#members + 1], deadlines[#deadlines + 1] = page[2][position], deadline
  end
end
for first = 1, #members, 500 do
  local some = {unpack(members, first, math.min(first + 499, #members))}
  for place, there in ipairs(has_each(kind, key, some)) do
    if there then
      found[#found + 1], found[#found + 2] = some[place], string.format('%.0f', deadlines[first + place - 1])
    end
  end
end
return {page[1], found}
