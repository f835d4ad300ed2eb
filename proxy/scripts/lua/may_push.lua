-- Tests whether the user may push to a list: no plain request can test that without changing data.
-- KEYS: a key that does not exist
-- Result: a status; an error if the user may not push
-- Complexity: O(1)
local key, refused = KEYS[1], "NOPERM this user has no permissions to run the 'rpush' command"
if redis.acl_check_cmd then
  if redis.acl_check_cmd('exists', key) and not redis.acl_check_cmd('rpush', key, '') then return {err = refused} end
  return {ok = 'OK'}
end
-- Before Redis 7.0 the only test is to run the command.
local reply = redis.pcall('rpush', key, '')
if not failed(reply) then call('unlink', key)
elseif reply.err:find("can't run", 1, true) then return {err = refused} end
return {ok = 'OK'}
