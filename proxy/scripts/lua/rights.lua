-- Tests whether the user may run all commands of the scripts on any key; changes nothing.
-- KEYS: a key that does not exist, its shadow, the index: permission for these means permission for any key
-- ARGV: the names of the commands; the beginning of the result
-- Result: a status, the beginning and 1 (yes) or 0 (no)
-- Reads only
-- Complexity: O(c) for c commands
local key, other, index, free = KEYS[1], KEYS[2], KEYS[3], '1'
if redis.acl_check_cmd then
  local keys = {key, key, key, key, key, key, key}
  for name in ARGV[1]:gmatch('%S+') do
    -- Servers crash if a key is missing, and newer ones (Redis 8.2.9) accept only as many arguments as the command has:
    -- so try the largest number first. If none is accepted, the server lacks the command.
    local known, allowed
    for arguments = 7, 0, -1 do
      known, allowed = pcall(redis.acl_check_cmd, name, unpack(keys, 1, arguments))
      if known then break end
    end
    if known and not allowed then free = '0' end
  end
else
  -- Before Redis 7.0 the only test is to run the commands, here so that they do nothing.
  local function try(...)
    local reply = redis.pcall(...)
    if type(reply) == 'table' and reply.err and reply.err:find("The user executing the script can't", 1, true) then
      free = '0'
    end
  end
  for _, name in ipairs({'exists', 'type', 'unlink', 'zcard'}) do try(name, key) end
  for _, name in ipairs({'zscore', 'zmscore', 'zrem', 'sismember', 'smismember', 'srem', 'hexists', 'hmget', 'hdel', 'lpos'}) do try(name, key, 'm') end
  for _, name in ipairs({'zrange', 'zrangebyscore', 'zrevrangebyscore', 'lrem', 'lrange'}) do try(name, key, 0, 0) end
  for _, name in ipairs({'time', 'dbsize', 'randomkey'}) do try(name) end
  for _, name in ipairs({'rename', 'copy'}) do try(name, key, other) end
  try('zadd', key, 'xx', 1, 'm')
  try('xadd', key, 'nomkstream', '*', 'f', 'v')
  try('zscore', index, 'm')
  if redis.pcall('type', index).ok == 'zset' then try('rpush', index, '') end
  try('hset', key, 'f', 'v', 'a field without a value')
  try('zscan', key, 0)
  try('lindex', key, 0)
  try('scan', 0, 'count', 1)
  try('select', 0)
  try('move', key, 1)
end
return {ok = ARGV[2] .. free}
