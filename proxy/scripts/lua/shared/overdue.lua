-- Removes a member that is due, in front of a client's request that adds it: whoever sent it cannot have seen the member,
-- and it must not take away what the request brings. Needs index and discard before it. O(1), O(n) for a list.
-- cleared: what was due has been removed in front of the requests of a transaction (most of it). They are to see one
-- moment, so what has passed within the last 50 ms is there for them.
-- told_of: whether somebody has asked, in this database, to be told of what expires.
-- owed: whether members that are due may go here. Where they have to be told of, they leave a note for the next sweep, as
-- a client may lack the rights to tell: a member of a set of the proxy's own, with the same deadline, so the sweeper
-- comes for it, and `lapse` tells of what it names. Where none can be written, members stay for `lapse`.
local function told_of(index) return call('exists', string.sub(index, 1, -6) .. 'events') == 1 end
-- For t
local function note(kind, key, shadow, index, members)
  local own, notes, deadlines = string.sub(index, 1, -6) .. 'owed', {}, {}
  local kept = string.sub(index, 1, -6) .. 'k:{' .. own .. '}'
  for _, member in ipairs(members) do
    local value
    if kind == 'hash' then value = call('hget', key, member)
    elseif kind == 'zset' then value = call('zscore', key, member)
    elseif kind == 'list' then
      local count = #call('lpos', key, member, 'count', 0)
      value = count > 0 and count
    else value = call('sismember', key, member) == 1 and '' end
    if value then
      notes[#notes + 1] = #key .. ' ' .. #member .. ' ' .. kind .. ' ' .. key .. member .. value
      deadlines[#deadlines + 1] = string.format('%.0f', math.ceil(call('zscore', shadow, member)))
      deadlines[#deadlines + 1] = notes[#notes]
    end
  end
  if notes[1] then
    call('zadd', kept, unpack(deadlines))
    call('sadd', own, unpack(notes))
    refresh(own, kept, index)
  end
end
-- For all
local function owed(kind, key, shadow, index, members)
  -- For t
  if told_of(index) and pcall(note, kind, key, shadow, index, members) then return true end
  failure = nil
  -- For all
  return not told_of(index)
end
local function overdue(kind, key, shadow, index, member, deadline, moment, cleared)
  if cleared and deadline > moment - 50 then return end
  -- What stays counts as there when the request was sent. That cannot be where it is due for long.
  if not owed(kind, key, shadow, index, {member}) and deadline > moment - 1000 then return end
  discard(kind, key, {member})
end
