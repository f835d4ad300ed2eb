-- Returns whether a key has a member that is not due: a key with only due members does not exist for clients.
-- Checks at most a thousand due members, and a thousand elements of a list. Needs has before it. O(log n), and O(log n)
-- for each due member.
local function alive(kind, key, shadow, moment)
  local due = redis.pcall('zrangebyscore', shadow, '(0', moment, 'limit', 0, 1000)
  local count = ({set = 'scard', hash = 'hlen', zset = 'zcard', list = 'llen'})[kind]
  if not due[1] or not count then return true end
  local size = redis.pcall(count, key)
  if type(size) ~= 'number' then return true end  -- the user may not run the command
  if kind == 'list' then
    local passed = {}
    for _, element in ipairs(due) do passed[element] = true end
    for _, element in ipairs(redis.pcall('lrange', key, 0, 999)) do
      if not passed[element] then return true end
    end
    return size > 1000
  end
  if size > #due then return true end
  for _, member in ipairs(due) do
    if has(kind, key, member) then size = size - 1 end
  end
  return size > 0
end
