-- Runs a command that removes members, for many requests of one form in their order: as remove.lua for each.
-- uses: has, index, now, discard, overdue, passed, settle, void, each, segments
-- KEYS: the index, then each key followed by its shadow
-- ARGV: the command; how many members each request has, which is all there is behind its key; the keys in turn (see
--   segments); then the members
-- Result: each request's own
-- Complexity: O(log n) for each member, beside the requests' own
local index, name, width = KEYS[1], ARGV[1], tonumber(ARGV[2])
local function work(replies, key, shadow, first, count)
  local members, timed, deadlines = {}, {}, {}
  for place = 1, count * width do members[place] = ARGV[first + place - 1] end
  settle(key, shadow, index)
  local shadowed, size = call('exists', shadow) == 1, #replies
  if shadowed then
    local kind, forgotten = call('type', key).ok, false
    for place, deadline in ipairs(score_each(shadow, members)) do
      local member = members[place]
      if deadline and tonumber(deadline) > 0 then
        if not deadlines[member] then timed[#timed + 1] = member end
        deadlines[member] = deadline
      elseif deadline then
        forgotten = forget(kind, key, shadow, member) or forgotten
      end
    end
    if forgotten then refresh(key, shadow, index) end
  end
  for place = 1, count do
    local reply = redis.pcall(name, key, unpack(members, (place - 1) * width + 1, place * width))
    if failed(reply) then reply, shadowed = {err = told(reply.err, name)}, false end
    replies[size + place] = reply
  end
  if not shadowed then return end
  local kind, new = call('type', key).ok, {}
  if kind == 'none' then return drop(key, shadow, index) end
  if #timed == 0 then return end
  for place, there in ipairs(has_each(kind, key, timed)) do
    if not there then
      new[#new + 1] = '-' .. deadlines[timed[place]]
      new[#new + 1] = timed[place]
    end
  end
  -- Where there is no memory left for them, one by one: see void.
  if #new > 0 and failed(redis.pcall('zadd', shadow, unpack(new))) then
    for place = 2, #new, 2 do void(kind, key, shadow, new[place]) end
  end
end
return segments(ARGV[3], 1, 4, width, work)
