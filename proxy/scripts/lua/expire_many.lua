-- Gives members deadlines, for many requests in their order: as expire.lua for each, without condition, relative to now.
-- uses: has, index, now, discard, overdue, passed, each, segments
-- KEYS: the index, then each key followed by its shadow
-- ARGV: the unit of the delays in milliseconds; the keys in turn (see segments); then for each request member and delay,
--   all greater than 0
-- Result: for each request 1 set; 0 no such key or member; an error for another type; in front of them a 0 if a list was
--   so long that its members had better be looked for one by one
-- Complexity: O(log n) for each request and n deadlines of the key (O(n) more for a list, once)
local unit, moment, index = tonumber(ARGV[1]), (now()), KEYS[1]
local function work(replies, key, shadow, first, count)
  local kind = call('type', key).ok
  local members, size = {}, #replies
  for place = 1, count do members[place] = ARGV[first + 2 * place - 2] end
  local each, proper = nil, kind == 'set' or kind == 'hash' or kind == 'zset' or kind == 'list'
  if proper then
    each = has_each(kind, key, members)
    -- What has expired while the requests were under way is there no more.
    local due = redis.pcall('zrangebyscore', shadow, '(0', moment, 'limit', 0, 1)
    if due[1] then
      local scores = score_each(shadow, members)
      for place in pairs(passed_each(key, shadow, index, members, scores, moment)) do each[place] = false end
    end
  end
  local other = kind == 'none' and 0 or redis.error_reply('ERR object type is unsupported')
  local new, last, least = {}, 0, nil
  for place = 1, count do
    if not proper then
      replies[size + place] = other
    elseif each[place] then
      local deadline = moment + ARGV[first + 2 * place - 1] * unit
      if not least or deadline < least then least = deadline end
      new[last + 1], new[last + 2] = deadline, members[place]
      last = last + 2
      replies[size + place] = 1
    else
      replies[size + place] = 0
    end
  end
  if not least then return end
  local before = redis.pcall('zscore', index, key)
  local added = redis.pcall('zadd', shadow, unpack(new))
  if failed(added) then
    local problem = {err = told(added.err, 'zadd')}
    for place = 1, count do
      if each[place] then replies[size + place] = problem end
    end
  elseif type(before) ~= 'string' or least < tonumber(before)
    or call('zrangebyscore', shadow, before, before, 'limit', 0, 1)[1] == nil then
    refresh(key, shadow, index)
  end
end
local replies = segments(ARGV[2], 1, 3, 2, work)
if slow then table.insert(replies, 1, 0) end
return replies
