-- Fails, in the server's words, before anything has been done, if the user may not run a command that comes later. Redis
-- before 7.0 cannot be asked. The arguments have to be whole: servers look for keys where they belong, and crash where
-- there are none.
local function need(name, ...)
  if redis.acl_check_cmd and not redis.acl_check_cmd(name, ...) then call(name, ...) end
end
-- The same for what `refresh` (index.lua) runs on a shadow behind a change of it.
local function need_refresh(shadow)
  need('zrangebyscore', shadow, 0, 0)
  need('zrevrangebyscore', shadow, 0, 0)
end
