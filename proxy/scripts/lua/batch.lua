-- Runs many requests on members, of any forms, in order; each behaves as it would alone.
-- uses: has, index, now, discard, overdue, passed, settle, void, alive, each, fits, need
-- KEYS: the index, then each key followed by its shadow
-- ARGV: three bytes for each run of requests of one form for one key: the form's number, the key's number, how many
--   requests; then the forms; then the arguments of each request in turn. A form has six words: a letter; the command,
--   or a unit in milliseconds; how many arguments a request has; the positions among them of the first and the last
--   member; the step between members. The letters:
--   a  the command adds members; A: its reply has a type of RESP3
--   o  any other command that writes to one key; k: it takes no memory; q: it only reads
--   r  the command removes members
--   e  gives a member a deadline, one unit or more from now; the positions are those of the member and the time
--   E  as e, for a command of proxy/commands/dialects.py (expire_members.lua); instead of the step the index of its
--      types in `types`
--   W  a command writes a member, which gets a deadline as with E (set_members.lua): the milliseconds follow the
--      command's arguments. Instead of the step: 1 to reply as the command does, 2 to reply 1 for "done"
--   p  drops a member's deadline
--   t  returns the time that a member has left to live, in units
--   Below, `For` has two more: m if the server would refuse only some of the requests (`Terms.mixed`); d if the server
--   also reads a script's terms from its first line
-- Result: each request's own, but a status for a counter beyond 2^53. If a list is too long for a script to look for
--   many members in it, the number of its key comes before all replies
-- Complexity: O(log n) for each member (O(n) more for a list), plus the requests' own
local index, moment = KEYS[1], now()
-- By the number of a key: `kinds`: its type; `firsts`: its earliest deadline or a lower bound, false for none, nil if
-- not looked up yet; `indexed`: what the index has; `lower`: earliest deadline to write to the index; `stale`: read the
-- earliest deadline from the shadow again before writing; `added`: a member that has just been added. The index is
-- written at the end, once for each key.
local kinds, firsts, indexed, lower, stale, added, long = {}, {}, {}, {}, {}, {}, nil
local work, proper = {}, {set = true, hash = true, zset = true, list = true}
-- Format numbers here: servers are slow to convert a Lua number to an argument.
local function in_digits(number)
  return type(number) == 'number' and number % 1 == 0 and string.format('%d', number) or number
end
local function forget_key(number)
  kinds[number], firsts[number], indexed[number], added[number] = nil, nil, nil, nil
  if lower[number] then stale[number] = true end
end
local function kind_of(number)
  local kind = kinds[number]
  if not kind then
    kind = call('type', KEYS[2 * number]).ok
    kinds[number] = kind
  end
  return kind
end
local function earliest_of(number)
  local first = firsts[number]
  if first == nil then
    first = tonumber(first_of(KEYS[2 * number + 1]) or nil) or false
    firsts[number], lower[number] = first, first or nil
  end
  return first
end
-- For aArEWokq; uses: discard, overdue, passed, settle
local function drop_key(number)
  drop(KEYS[2 * number], KEYS[2 * number + 1], index)
  forget_key(number)
end
local function settle_key(number)
  settle(KEYS[2 * number], KEYS[2 * number + 1], index)
  forget_key(number)
  return earliest_of(number)
end
-- For eEp; uses: discard, overdue, passed
-- Removes due members; returns the positions of those that are gone, as keys.
local function passed_of(number, members, scores)
  local gone = passed_each(KEYS[2 * number], KEYS[2 * number + 1], index, members, scores, moment)
  if next(gone) then forget_key(number) end
  return gone
end
-- For rpt; uses: 
local function slice(first, count)
  local members = {}
  for place = 1, count do members[place] = ARGV[first + place - 1] end
  return members
end
-- For aAreEW; uses: 
local function has_one(number, kind, key, member)
  if kind == 'list' and may('llen', key) and tonumber(redis.pcall('llen', key)) and call('llen', key) > 1000 then
    long = number
  end
  return has(kind, key, member)
end
local function there(number, kind, key, members)
  if not members[2] then return {has_one(number, kind, key, members[1])} end
  local before = slow
  local each = has_each(kind, key, members)
  if slow and not before then long = number end
  return each
end
-- For aAWokq; uses: 
-- Returns a reply; instead of a counter that a Lua number cannot hold a status with its digits, which a read returns.
local function exact(reply, ...)
  if type(reply) ~= 'number' or math.abs(reply) < 2 ^ 53 then return reply end
  local digits = redis.pcall(...)
  if type(digits) == 'table' then digits = digits[1] end
  return {ok = type(digits) == 'string' and digits or string.format('%.0f', reply)}
end
-- For aAW; uses: overdue
-- Returns, as keys, present members whose deadlines end when they are overwritten (expire_members.lua).
local function void_absent(number, key, shadow, form, first, count)
  local kind = kind_of(number)
  if kind == 'none' or kind == 'string' then return drop_key(number) end
  local one = count == 1 and form.from == form.to and {call('zscore', shadow, ARGV[first + form.from - 1])}
  if one and not one[1] then return end
  local members, named, with, void, over = {}, {}, {}, {}, {}
  for position = first, first + (count - 1) * form.width, form.width do
    for place = position + form.from - 1, position + form.to - 1, form.step do members[#members + 1] = ARGV[place] end
  end
  for place, deadline in ipairs(one or score_each(shadow, members)) do
    local member = members[place]
    if deadline and not named[member] then
      named[member] = true
      deadline = tonumber(deadline)
      if deadline < 0 then
        void[#void + 1] = member
      else
        if deadline <= moment then
          overdue(kind, key, shadow, index, member, deadline, moment)
          kinds[number] = nil
        end
        with[#with + 1] = member
        if form.over and deadline % 1 ~= 0 then over[member] = true end
      end
    end
  end
  if with[1] then
    local each = there(number, kind, key, with)
    for place, member in ipairs(with) do
      if not each[place] then void[#void + 1], over[member] = member, nil end
    end
  end
  if void[1] then
    call('zrem', shadow, unpack(void))
    stale[number] = true
  end
  return next(over) and over
end
function work.a(replies, number, form, first, count)
  local key, shadow, name, width, size = KEYS[2 * number], KEYS[2 * number + 1], form.name, form.width, #replies
  local earliest, over, gone = earliest_of(number), nil, nil
  if earliest and earliest <= moment then earliest = settle_key(number) end
  if earliest then over = void_absent(number, key, shadow, form, first, count) end
  if form.typed then redis.setresp(3) end
  for place = 1, count do
    local position = first + (place - 1) * width
    local reply = redis.pcall(name, key, unpack(ARGV, position, position + (form.takes or width) - 1))
    if failed(reply) then reply = {err = told(reply.err, name)} end
    replies[size + place] = reply == nil and false or exact(reply, 'hmget', key, ARGV[position])
    kinds[number] = not failed(reply) and form.kind or nil
    if over and not failed(reply) then
      for named = position + form.from - 1, position + form.to - 1, form.step do
        if over[ARGV[named]] then
          gone = gone or {}
          gone[#gone + 1], over[ARGV[named]] = ARGV[named], nil
        end
      end
    end
  end
  if form.typed then redis.setresp(2) end
  if gone then
    call('zrem', shadow, unpack(gone))
    stale[number] = true
  end
  added[number] = kinds[number] and ARGV[first + (count - 1) * width + form.from - 1]
end
work.A = work.a
-- For okq; uses: 
function work.o(replies, number, form, first, count)
  local earliest = earliest_of(number)
  if earliest and earliest <= moment then settle_key(number) end
  for place = 1, count do
    local position = first + (place - 1) * form.width
    local reply = redis.pcall(form.name, KEYS[2 * number], unpack(ARGV, position, position + form.width - 1))
    if failed(reply) then reply = {err = told(reply.err, form.name)} end
    replies[#replies + 1] = form.counts and exact(reply, 'get', KEYS[2 * number]) or reply
  end
  kinds[number], added[number] = nil, nil
end
work.k, work.q = work.o, work.o
-- For r; uses: void
function work.r(replies, number, form, first, count)
  local key, shadow, name, width, size = KEYS[2 * number], KEYS[2 * number + 1], form.name, form.width, #replies
  local members, timed, deadlines, earliest, removed = nil, {}, {}, earliest_of(number), false
  if earliest and earliest <= moment then earliest = settle_key(number) end
  if earliest then
    members = slice(first, count * width)
    for place, deadline in ipairs(score_each(shadow, members)) do
      local member = members[place]
      if deadline and tonumber(deadline) > 0 then
        if not deadlines[member] then timed[#timed + 1] = member end
        deadlines[member] = deadline
      elseif deadline and forget(kind_of(number), key, shadow, member) then
        stale[number] = true
      end
    end
  end
  for place = 1, count do
    local position = first + (place - 1) * width
    local reply = redis.pcall(name, key, unpack(ARGV, position, position + width - 1))
    if failed(reply) then
      reply, earliest = {err = told(reply.err, name)}, false
    elseif reply ~= 0 then
      removed = true
    end
    replies[size + place] = reply
  end
  kinds[number], added[number] = nil, nil
  if not earliest then return end
  local kind, new = kind_of(number), {}
  if kind == 'none' then return drop_key(number) end
  if not removed or not timed[1] then return end
  for place, stays in ipairs(there(number, kind, key, timed)) do
    if not stays then
      new[#new + 1] = '-' .. deadlines[timed[place]]
      new[#new + 1] = timed[place]
    end
  end
  -- When out of memory this fails: then void one by one, which drops the deadlines instead (shared/void.lua).
  if new[1] and failed(redis.pcall('zadd', shadow, unpack(new))) then
    for place = 2, #new, 2 do void(kind, key, shadow, new[place]) end
  end
end
-- For eEW; uses: 
-- Sets deadlines, each followed by its member; the earliest is `least`. Returns the error if that fails.
local function set_deadlines(number, least, ...)
  local earliest, size = earliest_of(number), select('#', ...)
  local count_new = redis.pcall('zadd', KEYS[2 * number + 1], ...)
  if failed(count_new) then return {err = told(count_new.err, 'zadd')} end
  -- Look up the earliest again if one of these members may have had it, or gets more than one deadline here.
  if 2 * count_new < size and not (size == 2 and earliest and least < earliest) then stale[number] = true end
  if not earliest or least < earliest then lower[number], firsts[number] = least, least end
end
-- For eE; uses: 
function work.e(replies, number, form, first, count)
  local key, shadow, size, unit = KEYS[2 * number], KEYS[2 * number + 1], #replies, form.name
  local kind, earliest = kind_of(number), earliest_of(number)
  local at, late, width, yes, no, early = first + form.from - 1, first + form.to - 1, form.width, 1, 0, 0
  local other = not proper[kind] and redis.error_reply('ERR object type is unsupported')
  -- For E; uses: fits
  if form.wanted then
    yes, no, early = {1}, {-2}, form.wanted:find('|', 1, true) and 0.25 or 0.5
    if kind ~= 'none' and not fits(kind, form.wanted) and earliest and earliest <= moment then
      earliest = settle_key(number)
      kind = kind_of(number)
    end
    other = not fits(kind, form.wanted) and misfit(form.wanted)
  end
  -- For eE
  if other then
    if kind == 'none' then other = no end
    for place = 1, count do replies[size + place] = other end
    return
  end
  local only = count == 1 and ARGV[at]
  if only and not (earliest and earliest <= moment) then
    if only ~= added[number] and not has_one(number, kind, key, only) then
      replies[size + 1] = no
      return
    end
    local deadline = moment + ARGV[late] * unit - early
    replies[size + 1] = set_deadlines(number, deadline, in_digits(deadline), only) or yes
    return
  end
  local members = {}
  for place = 1, count do members[place] = ARGV[at + (place - 1) * width] end
  local each = only and only == added[number] and {true} or there(number, kind, key, members)
  if earliest and earliest <= moment then
    -- Members that have expired while the requests were under way count as gone.
    for place in pairs(passed_of(number, members, score_each(shadow, members))) do each[place] = false end
    earliest = earliest_of(number)
  end
  local new, last, least = {}, 0, nil
  for place = 1, count do
    if each[place] then
      local deadline = moment + ARGV[late + (place - 1) * width] * unit - early
      if not least or deadline < least then least = deadline end
      new[last + 1], new[last + 2] = in_digits(deadline), members[place]
      last = last + 2
      replies[size + place] = yes
    else
      replies[size + place] = no
    end
  end
  if not least then return end
  local problem = set_deadlines(number, least, unpack(new))
  if not problem then return end
  for place = 1, count do
    if each[place] then replies[size + place] = problem end
  end
end
work.E = work.e
-- For W; uses: fits, need
-- Fails before any change if the user lacks a permission that a deadline needs, as set_members.lua does. The server has
-- checked all keys of the script, so for further keys only the command that must not fail after the write is checked.
local function make_sure(number, form, first)
  local key, shadow, member, sure = KEYS[2 * number], KEYS[2 * number + 1], ARGV[first], form.sure
  if sure[number] then return end
  if not next(sure) then
    need(form.name, key, unpack(ARGV, first, first + form.takes - 1))
    need_refresh(shadow)
    need('zrem', shadow, member)
    need_index(index, 'zrem', index)
    for _, command in ipairs({'unlink', 'exists'}) do need(command, shadow) end
  end
  need('zadd', shadow, 0, member)
  sure[number] = true
end
local function misfits(replies, number, form, size, count)
  local kind = kind_of(number)
  if kind == 'none' or kind == form.kind then return false end
  for place = size + 1, size + count do replies[place] = misfit(form.kind) end
  return true
end
function work.W(replies, number, form, first, count)
  local size, earliest = #replies, earliest_of(number)
  if earliest and earliest <= moment then earliest = settle_key(number) end
  if earliest and misfits(replies, number, form, size, count) then return end
  make_sure(number, form, first)
  work.a(replies, number, form, first, count)
  -- An error about the type takes precedence over the server's other errors.
  if failed(replies[size + 1]) and misfits(replies, number, form, size, count) then return end
  local new, last, least = {}, 0, nil
  for position = first, first + (count - 1) * form.width, form.width do
    if not failed(replies[size + (position - first) / form.width + 1]) then
      local deadline = moment + ARGV[position + form.takes] - 0.5
      if not least or deadline < least then least = deadline end
      new[last + 1], new[last + 2] = deadline, ARGV[position]
      last = last + 2
    end
  end
  local problem = least and set_deadlines(number, least, unpack(new))
  if not problem and form.step == 1 then return end
  for place = size + 1, size + count do
    if not failed(replies[place]) then replies[place] = problem or 1 end
  end
end
-- For p; uses: alive
function work.p(replies, number, form, first, count)
  local key, shadow, size = KEYS[2 * number], KEYS[2 * number + 1], #replies
  local earliest, dropped = earliest_of(number), {}
  if not earliest or earliest <= moment and not alive(kind_of(number), key, shadow, moment) then
    for place = 1, count do replies[size + place] = 0 end
    return
  end
  local members = slice(first, count)
  local scores = score_each(shadow, members)
  if earliest <= moment then
    for place in pairs(passed_of(number, members, scores)) do scores[place] = false end
  end
  for place, member in ipairs(members) do
    local deadline = not dropped[member] and tonumber(scores[place] or nil)
    if not deadline then
      replies[size + place] = 0
    else
      local kind = kind_of(number)
      local counts = proper[kind] and (deadline > 0 or math.floor(-deadline) > moment and not has(kind, key, member))
      local gone = redis.pcall('zrem', shadow, member)
      if failed(gone) then
        replies[size + place] = {err = told(gone.err, 'zrem')}
      else
        dropped[member], stale[number] = true, true
        replies[size + place] = counts and 1 or 0
      end
    end
  end
end
-- For t; uses: alive
function work.t(replies, number, form, first, count)
  local key, shadow, unit, size = KEYS[2 * number], KEYS[2 * number + 1], form.name, #replies
  local kind, earliest, lefts = kind_of(number), earliest_of(number), {}
  local scores
  if kind ~= 'none' and earliest and (earliest > moment or alive(kind, key, shadow, moment)) then
    scores = score_each(shadow, slice(first, count))
  end
  for place = 1, count do
    local left = -1
    if kind == 'none' or earliest and not scores then
      left = -2
    elseif scores and proper[kind] then
      local deadline = tonumber(scores[place] or nil)
      -- The void deadline of a removed member shows how long it would have had; its fraction may note a time
      -- (void_page.lua).
      if deadline and deadline < 0 then deadline = not has(kind, key, ARGV[first + place - 1]) and math.floor(-deadline) end
      left = deadline and deadline > moment and math.floor((math.ceil(deadline) - moment + unit / 2) / unit) or -1
    end
    lefts[place] = left
  end
  for place = 1, count do replies[size + place] = lefts[place] end
end
-- For all
local forms, types = {}, {'hash', 'set', 'zset', 'hash|set'}
for does, name, width, from, to, step in ARGV[2]:gmatch('(%a) (%S+) (%d+) (%d+) (%d+) (%d+)') do
  forms[#forms + 1] = {
    work = work[does], typed = does == 'A', wanted = does == 'E' and types[tonumber(step)], name = tonumber(name) or name, width = tonumber(width),
    from = tonumber(from), to = tonumber(to), step = tonumber(step),
    over = name == 'HSET' or name == 'HMSET' or name == 'ZADD', kind = ({S = 'set', H = 'hash', Z = 'zset'})[name:sub(1, 1)],
    counts = name:find('^IN') or name:find('^DECR'), reads = does == 'q' or does == 't', free = ('rpkqt'):find(does, 1, true),
  }
end
-- For W
for _, form in ipairs(forms) do
  if form.work == work.W then form.takes, form.over, form.sure = form.width - 1, false, {} end
end
-- For m
-- The server refuses some of the requests when its memory is used up, but not after a script's first write. So ask it
-- first, as shared/guard.lua does, and refuse them here.
local refusal = redis.pcall('zadd', index, 'xx', 'gt', '-inf', '')
refusal = failed(refusal) and told(refusal.err, 'zadd'):match('[^\r\n]*')
local code = refusal and refusal:match('^%u+')
local function refuse(replies, number, form, first, count)
  for _ = 1, count do replies[#replies + 1] = {err = refusal} end
end
for _, form in ipairs(forms) do
  if code == 'OOM' and not form.free then form.work = refuse end
  -- For d
  if not form.reads and (code == 'READONLY' or code == 'NOREPLICAS' or code == 'MISCONF') then form.work = refuse end
  -- For m
end
-- For all
local keys, place = {}, 0
for position = 2, #KEYS, 2 do
  place = place + 1
  keys[place] = KEYS[position]
end
-- A key that is not in the index has no shadow, unless the index is damaged.
local found, missing = redis.pcall('zmscore', index, unpack(keys)), {}
if not failed(found) then
  for number, score in ipairs(found) do
    firsts[number], indexed[number] = tonumber(score or nil) or false, score
    if not score then missing[#missing + 1] = KEYS[2 * number + 1] end
  end
  if missing[1] and redis.pcall('exists', unpack(missing)) ~= 0 then
    for number, score in ipairs(found) do
      if not score then firsts[number] = nil end
    end
  end
end
local replies, plan, first = {}, {ARGV[1]:byte(1, -1)}, 3
for position = 1, #plan, 3 do
  local form, count, size = forms[plan[position]], plan[position + 2], #replies
  failure = nil
  local done, problem = pcall(form.work, replies, plan[position + 1], form, first, count)
  if not done then
    -- Requests that have run keep their replies (shared/run.lua).
    for number = size + 1, size + count do
      if replies[number] == nil then replies[number] = failure or error(problem, 0) end
    end
  end
  first = first + count * form.width
end
for number in pairs(stale) do
  local known, first = pcall(first_of, KEYS[2 * number + 1])
  local absent = false
  -- For c
  absent = undeclared and redis.pcall('exists', index) == 0
  -- For all
  if known then lower[number] = not absent and first ~= indexed[number] and first or nil end
  if known and not first and not absent then redis.pcall('zrem', index, KEYS[2 * number]) end
end
local new = {}
for number, deadline in pairs(lower) do
  new[#new + 1], new[#new + 2] = in_digits(deadline), KEYS[2 * number]
end
if new[1] then redis.pcall('zadd', index, unpack(new)) end
if long then table.insert(replies, 1, long) end
return replies
