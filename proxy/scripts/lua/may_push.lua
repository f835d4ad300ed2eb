-- Tests whether the user may push to a list, which no plain request can without a change.
-- KEYS: a key that does not exist
-- Result: a status, or the error of a user who may not
-- Complexity: O(1)
local key, refused = KEYS[1], "NOPERM this user has no permissions to run the 'rpush' command"
if redis.acl_check_cmd then
  if redis.acl_check_cmd('exists', key) and not redis.acl_check_cmd('rpush', key, '') then return {err = refused} end
  return {ok = 'OK'}
end
-- On Redis before 7.0 the only test is to run it.
local reply = redis.pcall('rpush', key, '')
if not failed(reply) then call('unlink', key)
elseif reply.err:find("can't run", 1, true) then return {err = refused} end
return {ok = 'OK'}
