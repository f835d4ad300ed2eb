-- Runs a command that adds members, for many requests of one form in their order: as add.lua for each.
-- uses: has, index, now, discard, overdue, passed, settle, each, segments
-- KEYS: the index, then each key followed by its shadow
-- ARGV: the command; in one, how many arguments each request has behind its key, and positions among them of the first
--   member and of the last, and the step between them; the keys in turn (see segments); then those arguments
-- Result: each request's own
-- Complexity: O(log n) for each member, beside the requests' own (O(n) more for a list, once)
local index, name = KEYS[1], ARGV[1]
local width, from, to, step = ARGV[2]:match('(%d+) (%d+) (%d+) (%d+)')
width, from, to, step = tonumber(width), tonumber(from), tonumber(to), tonumber(step)
local function void_absent(key, shadow, first, count)
  local kind = call('type', key).ok
  if kind == 'none' or kind == 'string' then return drop(key, shadow, index) end
  local members, named = {}, {}
  for position = first, first + (count - 1) * width, width do
    for place = position + from - 1, position + to - 1, step do members[#members + 1] = ARGV[place] end
  end
  local with, void, moment = {}, {}, nil
  for place, deadline in ipairs(score_each(shadow, members)) do
    local member = members[place]
    if deadline and not named[member] then
      named[member] = deadline
      moment = moment or (now())
      if tonumber(deadline) < 0 then
        void[#void + 1] = member
      else
        if tonumber(deadline) <= moment then overdue(kind, key, index, member, tonumber(deadline), moment) end
        with[#with + 1] = member
      end
    end
  end
  if #with > 0 then
    local each = has_each(kind, key, with)
    for place, member in ipairs(with) do
      if not each[place] then void[#void + 1] = member end
    end
  end
  if #void > 0 then
    call('zrem', shadow, unpack(void))
    refresh(key, shadow, index)
  end
end
local function work(replies, key, shadow, first, count)
  settle(key, shadow, index)
  if call('exists', shadow) == 1 then void_absent(key, shadow, first, count) end
  local size = #replies
  redis.setresp(3)
  for place = 1, count do
    local position = first + (place - 1) * width
    local reply = redis.pcall(name, key, unpack(ARGV, position, position + width - 1))
    if failed(reply) then reply = {err = told(reply.err, name)} end
    replies[size + place] = reply == nil and false or reply
  end
  redis.setresp(2)
end
return segments(ARGV[3], 1, 4, width, work)
