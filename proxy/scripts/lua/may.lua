-- Tests whether the user may run, on some keys, the commands that set or move deadlines; changes nothing.
-- KEYS: each key followed by its shadow, then the index. The server refuses the call if the user may not write to one
--   of them
-- ARGV: the result if the user may run these commands
-- Result: that, as a status; any other result means that the user may not
-- Reads only
-- Complexity: O(k) for k keys
local asks = {set = 'sismember', hash = 'hexists', zset = 'zscore', list = 'lpos'}
local function may(...)
  if redis.acl_check_cmd then return redis.acl_check_cmd(...) end
  -- Before Redis 7.0 the only test is to run the commands, here so that they do nothing or fail.
  local reply = redis.pcall(...)
  return not (type(reply) == 'table' and reply.err and reply.err:find("The user executing the script can't", 1, true))
end
local function gives(key, shadow)
  if not (may('time') and may('type', key) and may('zscore', shadow, '') and may('zadd', shadow, 'xx', 1, '')) then
    return false
  end
  local ask = asks[redis.call('type', key).ok]
  return not ask or may(ask, key, '')
end
local allowed = true
for place = 1, #KEYS - 1, 2 do
  local key, shadow = KEYS[place], KEYS[place + 1]
  allowed = allowed and (gives(key, shadow) or may('rename', shadow, shadow) or may('copy', shadow, shadow)
    or may('move', shadow, 'nowhere'))
end
return {ok = allowed and ARGV[1] or ''}
