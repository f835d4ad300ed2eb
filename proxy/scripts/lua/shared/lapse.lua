-- Removes due members, and sends the events for them (proxy/events/rules.py). Only this piece sends events: if there
-- are rules, other pieces that remove due members leave notes (overdue.lua). Needs glob, discard and need before it.
--
-- heeded: returns whether rules match a key. elsewhere: call this after selecting another database. tally: entries
-- written, messages published, entries and messages that failed, the last error, elements pushed, elements that failed.
-- pay_first: call this before removing members of a key. It sends the events of the notes, so that events are in the
-- order of deadlines, at most once in a script and database. Returns how many notes it has dealt with (500: more may be
-- left).
-- lapse: removes members (at most a few hundred, in order of deadline) whose deadlines are still in the shadow, and
-- returns how many it removed. The removal comes first: at maxmemory the server allows no other write before it.
-- `strict`: the script runs as a client's user. If that user may not write entries or elements, the script fails with
-- the server's error before any change; messages are sent if the user may send them. Without `strict` the members are
-- removed even if no events can be sent.
-- O(1) for each member, O(log n) in a sorted set, O(n) in a list. O(n) also in a list to which members are pushed, if
-- that list has a deadline for an equal element. O(r) for each key for r rules.
local rules
local tally = {0, 0, 0, 0, '', 0, 0}
local few = {}  -- for the last hash: how many values to read together
local paid = false
local function elsewhere() rules, few, paid = nil, {}, false end
local function read_rules(index)
  local found = redis.pcall('zrangebyscore', string.sub(index, 1, -6) .. 'events', '-inf', '+inf')
  rules = {}
  if failed(found) then return end  -- it has the wrong type
  for _, text in ipairs(found) do
    local length, value, database, letters, list, size, names = text:match('^(%d+) ([01]) (%d+) (%a*)%-(%d*) (%d+):(.*)$')
    if length then
      local shadow = names:sub(size + 1, size + (tonumber(list) or 0))
      rules[#rules + 1] = {
        length = length == '0' and '9007199254740991' or length, value = value == '1', database = database,
        letters = letters, glob = glob(names:sub(1, tonumber(size))), stream = names:sub(size + #shadow + 1),
        list = shadow:match('^k:{(.*)}$') or shadow:match('^t:(.*)$') or shadow:match('^s:{%d*}(.*)$') or '',
        shadow = string.sub(index, 1, -6) .. shadow,
      }
    end
  end
  -- Of several rules for one stream or list, the most specific one applies.
  table.sort(rules, function(one, other)
    local pattern, another = one.glob.pattern, other.glob.pattern
    if #pattern ~= #another then return #pattern > #another end
    return pattern < another
  end)
end
local function audience(key, index)
  if not rules then read_rules(index) end
  if #rules == 0 then return nil end
  local found, seen = {letters = '', lists = {}}, {}
  for _, rule in ipairs(rules) do
    if matches(rule.glob, key) then
      if rule.list ~= '' and rule.list ~= key and not seen[rule.shadow] then
        seen[rule.shadow] = true
        found.lists[#found.lists + 1] = {list = rule.list, shadow = rule.shadow, value = rule.value}
      end
      if rule.stream ~= '' and not seen[rule.stream] then
        seen[rule.stream] = true
        found[#found + 1] = {stream = rule.stream, length = rule.length, value = rule.value}
      end
      found.letters = found.letters .. rule.letters
      found.database = rule.database
    end
  end
  return (#found > 0 or #found.lists > 0 or found.letters ~= '') and found or nil
end
-- Checks the permission to write to the targets of rules. If a target is a list with deadlines (see `renew_in`), the
-- targets of rules that match the list count too.
local function permitted(wanted, shadow, index, seen)
  for _, one in ipairs(wanted.lists) do
    if redis.acl_check_cmd then
      need('rpush', one.list, '')
    else
      -- Before Redis 7.0 the only test is to run the command, here without effect: a shadow is no list.
      local reply = redis.pcall('rpush', shadow, '')
      if failed(reply) and string.find(reply.err, "can't", 1, true) then call('rpush', shadow, '') end
    end
    need('type', one.shadow)
    call('type', one.list)
    if not seen[one.list] and call('type', one.shadow).ok == 'zset' then
      seen[one.list] = true
      for _, name in ipairs({'zscore', 'zrem', 'zmscore'}) do need(name, one.shadow, '') end
      need('unlink', one.shadow)
      need('lpos', one.list, '')
      need('lrem', one.list, 0, '')
      need_refresh(one.shadow)
      local more = audience(one.list, index)
      if more then permitted(more, shadow, index, seen) end
    end
  end
  for _, one in ipairs(wanted) do
    if redis.acl_check_cmd then
      need('xadd', one.stream, '*', 'key', '')
    else
      -- Before Redis 7.0 the only test is to run the command, here without effect: no entry can have this ID.
      local reply = redis.pcall('xadd', one.stream, '0-0', 'key', '')
      if failed(reply) and string.find(reply.err, "can't", 1, true) then call('xadd', one.stream, '0-0', 'key', '') end
    end
  end
end
-- The calls for the entries take most of the time, so they have few arguments: the stream is trimmed only now and then.
local function append(target, key, kind, members, deadlines, extra, values)
  local stream, run, written, reply, last = target.stream, redis.pcall, 0, nil, #members
  for place = 1, last do
    local member, deadline = members[place], deadlines[place]
    if place == last or place % 100 == 0 then
      if extra then
        reply = run('xadd', stream, 'maxlen', '~', target.length, '*', 'key', key, 'type', kind,
          'member', member, 'deadline', deadline, extra, values[place])
      else
        reply = run('xadd', stream, 'maxlen', '~', target.length, '*', 'key', key, 'type', kind,
          'member', member, 'deadline', deadline)
      end
    elseif extra then
      reply = run('xadd', stream, '*', 'key', key, 'type', kind, 'member', member, 'deadline', deadline,
        extra, values[place])
    else
      reply = run('xadd', stream, '*', 'key', key, 'type', kind, 'member', member, 'deadline', deadline)
    end
    if type(reply) == 'table' then  -- an error: it would be the same for the next
      tally[3], tally[5] = tally[3] + last - written, reply.err
      break
    end
    written = written + 1
  end
  tally[1] = tally[1] + written
end
-- Prepares a list for elements that are about to be pushed: they begin a new life, as with RPUSH (renew.lua). An equal
-- element in the list that is due has expired: it is removed first, with its own events. If lists push to each other,
-- the recursion ends, because an element that was handled has no deadline any more.
local lapse
local function renew_in(target, words, index, strict)
  if call('type', target.shadow).ok ~= 'zset' then return end
  local kind, moment, changed = call('type', target.list).ok, (now()), false
  if kind == 'none' then return drop(target.list, target.shadow, index) end
  if kind ~= 'list' then return end
  for _, word in ipairs(words) do
    local deadline = tonumber(call('zscore', target.shadow, word) or nil)
    local there = deadline and deadline > 0 and call('lpos', target.list, word)
    if there and deadline <= moment then
      lapse('list', target.list, target.shadow, index, {word}, strict)
      there = false
    end
    if deadline and not there then
      call('zrem', target.shadow, word)
      changed = true
    end
  end
  if changed then refresh(target.list, target.shadow, index) end
end
local function push(target, words, index, strict)
  if #words == 0 then return end
  -- Removed members must be pushed even if `renew_in` fails (damaged keys).
  if not pcall(renew_in, target, words, index, strict) then failure = nil end
  local reply = redis.pcall('rpush', target.list, unpack(words))
  if failed(reply) then
    tally[7], tally[5] = tally[7] + #words, reply.err
  else
    tally[6] = tally[6] + #words
  end
end
local function publish(letter, wanted, channel, words)
  if string.find(wanted.letters, letter, 1, true) then
    local reply = redis.pcall('publish', channel, words)
    if failed(reply) then
      tally[4], tally[5] = tally[4] + 1, reply.err
    else
      tally[2] = tally[2] + 1
    end
  end
end
local function notify(wanted, key, kind, members)
  local event, at, part, size = string.sub(kind, 1, 1) .. 'expired', '@' .. wanted.database .. '__:', {}, 0
  for place, member in ipairs(members) do
    part[#part + 1] = #member .. ':' .. member
    size = size + #member
    if size > 65536 or place == #members then  -- put few large members into one message
      local all = table.concat(part, ',')
      publish('S', wanted, '__subkeyspace' .. at .. key, event .. '|' .. all)
      publish('T', wanted, '__subkeyevent' .. at .. event, #key .. ':' .. key .. '|' .. all)
      publish('V', wanted, '__subkeyspaceevent' .. at .. event .. '|' .. key, all)
      part, size = {}, 0
    end
  end
  if not string.find(key, '\n', 1, true) then  -- as in Redis: receivers could not see where such a key ends
    for _, member in ipairs(members) do publish('I', wanted, '__subkeyspaceitem' .. at .. key .. '\n' .. member, event) end
  end
end

local function values_wanted(wanted)
  for _, targets in ipairs({wanted, wanted.lists}) do
    for _, target in ipairs(targets) do
      if target.value then return true end
    end
  end
  return false
end
-- In a mass expiry many consecutive members have the same deadline: then read only the first and the last.
local function read_deadlines(read, shadow, members)
  local first, last = read('zscore', shadow, members[1]), #members > 8 and read('zscore', shadow, members[#members])
  local all = {}
  if type(first) ~= 'string' or first ~= last then
    all = read('zmscore', shadow, unpack(members))
    if failed(all) then return all end
    -- A whole number of milliseconds, or less by the fraction that expire_members.lua puts there as a mark.
    for place, deadline in ipairs(all) do
      if deadline and deadline:find('.', 1, true) then all[place] = string.format('%.0f', math.ceil(deadline)) end
    end
    return all
  end
  if first:find('.', 1, true) then first = string.format('%.0f', math.ceil(first)) end
  for place = 1, #members do all[place] = first end
  return all
end
local function tell(wanted, kind, key, index, gone, deadlines, values, strict)
  for _, target in ipairs(wanted) do
    local extra = kind == 'list' and 'count' or target.value and kind ~= 'set' and 'value' or nil
    append(target, key, kind, gone, deadlines, extra, values)
  end
  for _, target in ipairs(wanted.lists) do
    push(target, target.value and (kind == 'hash' or kind == 'zset') and values or gone, index, strict)
  end
  if wanted.letters ~= '' and #gone > 0 then notify(wanted, key, kind, gone) end
end
local function own_names(index)
  local own = string.sub(index, 1, -6) .. 'owed'
  return own, string.sub(index, 1, -6) .. 'k:{' .. own .. '}'
end
local function pay(index, own, notes, texts)
  call('zrem', notes, unpack(texts))
  if call('type', own).ok ~= 'hash' then call('unlink', own) end
  for _, text in ipairs(texts) do
    local value = call('hmget', own, text)[1] or ''
    call('hdel', own, text)
    local size, length, kind, deadline, rest = text:match('^(%d+) (%d+) (%a+) (%d+) (.*)$')
    local key = rest and rest:sub(1, size)
    local wanted = key and audience(key, index)
    if wanted then tell(wanted, kind, key, index, {rest:sub(size + 1, size + length)}, {deadline}, {value}, false) end
  end
  return #texts
end
-- Removes members and sends their events; returns how many there were, and the size of the values read, in bytes.
local function witness(wanted, kind, key, shadow, index, members, strict)
  local read = strict and call or redis.pcall
  local deadlines, found = read_deadlines(read, shadow, members), nil
  if kind == 'set' then
    found = read('smismember', key, unpack(members))
  elseif kind == 'zset' then
    found = read('zmscore', key, unpack(members))
  elseif kind == 'hash' and values_wanted(wanted) then
    found = read('hmget', key, unpack(members))
  end
  if failed(deadlines) or failed(found) then
    local count = discard(kind, key, members)
    tally[3], tally[7] = tally[3] + count * #wanted, tally[7] + count * #wanted.lists
    tally[5] = failed(deadlines) and deadlines.err or found.err
    return count, 0
  end
  local bytes = 0
  if found then
    if kind == 'hash' then
      for place = 1, #members do bytes = bytes + #(found[place] or '') end
    end
    discard(kind, key, members)
  else
    found = {}
    local name = kind == 'hash' and 'hdel' or 'lrem'
    for place, member in ipairs(members) do
      found[place] = name == 'hdel' and call(name, key, member) or call(name, key, 0, member)
    end
  end
  local gone, times, values, whole = members, deadlines, found, true
  for place = 1, #members do
    if not found[place] or found[place] == 0 then whole = false end
  end
  if not whole then
    gone, times, values = {}, {}, {}
    for place = 1, #members do
      if found[place] and found[place] ~= 0 then
        local number = #gone + 1
        gone[number], times[number], values[number] = members[place], deadlines[place], found[place]
      end
    end
  end
  tell(wanted, kind, key, index, gone, times, values, strict)
  return #gone, bytes
end
local function heeded(key, index) return audience(key, index) ~= nil end
local function pay_first(key, index)
  local own, notes = own_names(index)
  if paid or key == own or not audience(key, index) then return 0 end
  paid = true
  local texts = redis.pcall('zrange', notes, 0, 499)
  if failed(texts) or not texts[1] then return 0 end
  pay(index, own, notes, texts)
  refresh(own, notes, index)
  return #texts
end
function lapse(kind, key, shadow, index, members, strict)
  local own, notes = own_names(index)
  if key == own and not strict then return pay(index, own, notes, members) end
  local wanted = audience(key, index)
  if not wanted then return discard(kind, key, members) end
  if strict then
    permitted(wanted, shadow, index, {})
  end
  if kind ~= 'hash' then return witness(wanted, kind, key, shadow, index, members, strict) end
  -- Values may be large, so few are held at a time: their number depends on the sizes of the key's previous ones.
  if few.key ~= key then few.key, few.size = key, values_wanted(wanted) and 1 or 100 end
  local count, first, size = 0, 1, few.size
  while first <= #members do
    local last = math.min(first + size - 1, #members)
    local gone, bytes = witness(wanted, kind, key, shadow, index, {unpack(members, first, last)}, strict)
    count, first = count + gone, last + 1
    size = math.max(1, math.min(100, 8 * size, math.floor(size * 65536 / math.max(1, bytes))))
    few.size = size
  end
  return count
end
