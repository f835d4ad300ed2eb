-- Fails with the server's error, before any change, if the user may not run a later command. Redis before 7.0 cannot be
-- asked. The arguments must be complete: servers look for keys in their positions, and crash if they are missing.
local function need(name, ...)
  if redis.acl_check_cmd and not redis.acl_check_cmd(name, ...) then call(name, ...) end
end
-- The same for the entry of a key in the index: a missing one hides its deadlines, one left over makes DBSIZE wrong.
local function need_index(index, name, ...)
  if redis.acl_check_cmd then return need(name, index, ...) end
  -- On Redis before 7.0 the only test is to run it, with a member that is never there: the index itself.
  local reply = redis.pcall(name, index, ...)
  if failed(reply) and string.find(reply.err, "script can't", 1, true) then call(name, index, ...) end
end
-- The same for the commands that `refresh` (index.lua) runs on a shadow after a change.
local function need_refresh(shadow)
  need('zrangebyscore', shadow, 0, 0)
  need('zrevrangebyscore', shadow, 0, 0)
end
