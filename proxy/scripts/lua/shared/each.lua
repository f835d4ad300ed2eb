-- Looks up many members in one call, or one by one if the user may not run that call. Returns the replies in order.
-- slow: whether a lookup in a list was so expensive that no script should look up many members in that list.
-- has_each: whether a collection holds the members (kind: the reply of TYPE). score_each: the members' scores in a
-- shadow, false for a member without one.
-- O(1) for each member, O(log n) in a sorted set; in a list O(n) for all members together.
local function may(...)
  if not redis.acl_check_cmd then return true end
  local known, allowed = pcall(redis.acl_check_cmd, ...)
  return known and allowed
end
local function many(name, key, members)
  if not may(name, key, members[1]) then return nil end
  local reply = redis.pcall(name, key, unpack(members))
  return not failed(reply) and reply or nil
end
local slow = false
local function in_list(key, members)
  if not may('lrange', key, 0, 0) then return nil end
  local there, left, from = {}, 0, 0
  for _, member in ipairs(members) do
    if there[member] == nil then there[member], left = false, left + 1 end
  end
  repeat
    local page = redis.pcall('lrange', key, from, from + 999)
    if failed(page) then return nil end
    for _, member in ipairs(page) do
      if there[member] == false then there[member], left = true, left - 1 end
    end
    from = from + 1000
    slow = slow or from > 1000
  until left == 0 or #page < 1000
  local each = {}
  for place, member in ipairs(members) do each[place] = there[member] end
  return each
end
local function in_hash(key, members)
  local each, run = {}, redis.pcall
  for place, member in ipairs(members) do
    local there = run('hexists', key, member)
    if there ~= 1 and there ~= 0 then return nil end
    each[place] = there == 1
  end
  return each
end
local function has_each(kind, key, members)
  local each
  if kind == 'set' then each = many('smismember', key, members)
  elseif kind == 'zset' then each = many('zmscore', key, members)
  elseif kind == 'hash' then each = in_hash(key, members)
  elseif kind == 'list' then each = in_list(key, members)
  end
  if not each then
    each, slow = {}, slow or kind == 'list'
    for place, member in ipairs(members) do each[place] = has(kind, key, member) end
  elseif kind == 'set' then
    for place, reply in ipairs(each) do each[place] = reply == 1 end
  end
  return each
end
local function score_each(shadow, members)
  local scores = members[2] and many('zmscore', shadow, members)
  if not scores then
    scores = {}
    for place, member in ipairs(members) do scores[place] = call('zscore', shadow, member) end
  end
  return scores
end
