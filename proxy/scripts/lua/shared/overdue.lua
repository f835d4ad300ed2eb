-- Removes a due member in front of a client's request that adds it again: otherwise the old deadline would remove the
-- new member, too. Needs index and discard before it. O(1), O(n) for a list.
-- within: returns whether a deadline does not count yet although the clock has passed it; all count if so many are due
-- that `settle` may have left some.
-- told_of: whether this database has rules for events.
-- owed: returns whether due members may be removed here. With rules for events, it first writes a note about each
-- member for the next sweep, because the client may not be allowed to write entries. A note is a field of a hash of the
-- proxy's own, with the member's deadline and, if a rule wants values, the member's value. The sweeper removes the
-- note like any due member, and `lapse` then sends the events for the member that the note names. If no note can be
-- written, members stay for `lapse`. The values of a client's hash may be large. So `owed` itself removes its due
-- fields, a few at a time, right after it has noted them: then the server holds few values twice.
local function told_of(index) return call('exists', string.sub(index, 1, -6) .. 'events') == 1 end
-- For t
local function note(kind, key, shadow, index, members)
  local prefix, wants, notes, deadlines, part, bytes = string.sub(index, 1, -6), false, {}, {}, {}, 0
  local own, found = prefix .. 'owed', nil
  local kept = prefix .. 'k:{' .. own .. '}'
  for name, wanted in pairs({[own] = 'hash', [kept] = 'zset'}) do
    local there = call('type', name).ok
    if there ~= wanted and there ~= 'none' then call('unlink', name) end
  end
  for _, rule in ipairs(call('zrangebyscore', prefix .. 'events', '-inf', '+inf')) do
    wants = wants or rule:find('^%d+ 1') ~= nil
  end
  -- For t+L
  found = seek(kind, key, members)
  -- For t
  for place, member in ipairs(members) do
    local value
    if kind == 'hash' then value = wants and call('hmget', key, member)[1] or call('hexists', key, member) == 1 and ''
    elseif kind == 'zset' then value = call('zscore', key, member)
    elseif kind == 'list' then
      local count = found and found.counts[member] or #call('lpos', key, member, 'count', 0)
      value = count > 0 and count
    else value = call('sismember', key, member) == 1 and '' end
    part[#part + 1] = member
    if value then
      local deadline = string.format('%.0f', math.ceil(call('zscore', shadow, member)))
      local text = #key .. ' ' .. #member .. ' ' .. kind .. ' ' .. deadline .. ' ' .. key .. member
      notes[#notes + 1], notes[#notes + 2] = text, value
      deadlines[#deadlines + 1], deadlines[#deadlines + 2] = deadline, text
      bytes = bytes + 100 + #text + #tostring(value)
    end
    if bytes > 65536 or place == #members then  -- values may be large: few are held at a time
      if notes[1] then
        call('hset', own, unpack(notes))
        call('zadd', kept, unpack(deadlines))
      end
      if kind == 'hash' then discard(kind, key, part) end
      notes, deadlines, part, bytes = {}, {}, {}, 0
    end
  end
  refresh(own, kept, index)
end
-- For all
local function owed(kind, key, shadow, index, members)
  -- For t
  if told_of(index) and pcall(note, kind, key, shadow, index, members) then return true end
  failure = nil
  -- For all
  return not told_of(index)
end
-- For s
local function within(shadow, deadline, moment)
  return deadline > moment - grace and not call('zrangebyscore', shadow, '(0', moment, 'limit', 1999, 1)[1]
end
-- For all
local function overdue(kind, key, shadow, index, member, deadline, moment)
  -- For s
  if within(shadow, deadline, moment) then return end
  -- For all
  -- Without a note, remove only a member long due: any other may have been alive when the request was sent.
  if not owed(kind, key, shadow, index, {member}) and deadline > moment - 1000 then return end
  discard(kind, key, {member})
end
