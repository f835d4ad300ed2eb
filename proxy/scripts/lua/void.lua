-- Voids the deadlines of absent members in some keys and databases: the members may be about to be added. A key without
-- a shadow in a database costs one read there and no write.
-- uses: has, index, void
-- KEYS: the index, then each key followed by its shadow
-- ARGV: about how much to check at most; 1 if TTL must go on showing the deadlines, because the server may still refuse
--   to add the members, else 0; where to go on: the number of the key, the number of the database, the cursor of ZSCAN
--   (1 1 0 to begin); how many databases; the databases ('' for the one that the connection is in); then for each key
--   how many members, and the members (-1 and none: all that have deadlines)
-- Result: where to go on: key, database, cursor; nothing at the end
-- Complexity: O(d k) for d databases and k keys, O(log n) for each member (O(n) for a list); bounded by the first of
--   ARGV
local index, room, tentative, databases = KEYS[1], tonumber(ARGV[1]), ARGV[2] == '1', tonumber(ARGV[6])
local number, which, cursor, place = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], 7 + databases
local function members(kind, key, shadow, first, last)
  local voided = 0
  for position = first, last do
    local member = ARGV[position]
    if tentative then
      if void(kind, key, shadow, member) then voided = voided + 1 end
    elseif call('zscore', shadow, member) and not has(kind, key, member) then
      voided = voided + call('zrem', shadow, member)
    end
  end
  if voided > 0 then refresh(key, shadow, index) end
end
for one = 1, number - 1 do place = place + 1 + math.max(tonumber(ARGV[place]), 0) end
for one = number, (#KEYS - 1) / 2 do
  local key, shadow, count = KEYS[2 * one], KEYS[2 * one + 1], tonumber(ARGV[place])
  for database = which, databases do
    if room <= 0 then return {one, database, cursor} end
    room = room - 1
    local name = ARGV[6 + database]
    if name == '' or not redis.pcall('select', name).err then
      local there = call('type', shadow).ok
      local kind = there == 'zset' and call('type', key).ok
      if there ~= 'none' and there ~= 'zset' then
        call('unlink', shadow)
      elseif kind == 'none' or kind == 'string' then
        drop(key, shadow, index)
      elseif kind and count >= 0 then
        members(kind, key, shadow, place + 1, place + count)
        room = room - count
      elseif kind then
        repeat
          local page = call('zscan', shadow, cursor, 'count', 500)
          for position = 1, #page[2], 2 do void(kind, key, shadow, page[2][position]) end
          room, cursor = room - 10 - #page[2] / 2, page[1]
          if room <= 0 and cursor ~= '0' then return {one, database, cursor} end
        until cursor == '0'
      end
    end
    cursor = '0'
  end
  which, place = 1, place + 1 + math.max(count, 0)
end
return {}
