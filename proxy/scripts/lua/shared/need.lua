-- Fails with the server's error, before any change, if the user may not run a later command. Redis before 7.0 cannot be
-- asked. The arguments must be complete: servers look for keys in their positions, and crash if they are missing.
local function need(name, ...)
  if redis.acl_check_cmd and not redis.acl_check_cmd(name, ...) then call(name, ...) end
end
-- The same for the index entry of a key that is about to get deadlines: without it they would not be seen.
local function need_index(index)
  if redis.acl_check_cmd then return need('zadd', index, 0, '') end
  -- Redis before 7.0 has to be seen doing it: this changes nothing.
  local reply = redis.pcall('zadd', index, 'xx', 0, '')
  if failed(reply) and string.find(reply.err, "can't", 1, true) then call('zadd', index, 'xx', 0, '') end
end
-- The same for what `refresh` (index.lua) runs on a shadow behind a change of it.
local function need_refresh(shadow)
  need('zrangebyscore', shadow, 0, 0)
  need('zrevrangebyscore', shadow, 0, 0)
end
