-- Fails with the server's error, before any change, if the user may not run a later command. Redis before 7.0 cannot
-- check that. The arguments must be complete: servers look for keys at their positions, and crash without them.
local function need(name, ...)
  if redis.acl_check_cmd and not redis.acl_check_cmd(name, ...) then call(name, ...) end
end
-- As `need`, for a key's entry in the index: without an entry the key's deadlines are not found, and a leftover entry
-- makes DBSIZE wrong.
local function need_index(index, name, ...)
  if redis.acl_check_cmd then return need(name, index, ...) end
  -- Before Redis 7.0 the only test is to run the command, with a member that is never there: the index's own name.
  local reply = redis.pcall(name, index, ...)
  if failed(reply) and string.find(reply.err, "script can't", 1, true) then call(name, index, ...) end
end
-- As `need`, for the commands that `refresh` (index.lua) runs on a shadow after a change.
local function need_refresh(shadow)
  need('zrangebyscore', shadow, 0, 0)
  need('zrevrangebyscore', shadow, 0, 0)
end
