-- Fails, in the server's words, before anything has been done, if the user may not run a command that comes later. Redis
-- before 7.0 cannot be asked.
local function need(name, ...)
  if redis.acl_check_cmd and not redis.acl_check_cmd(name) then call(name, ...) end
end
