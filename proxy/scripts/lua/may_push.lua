-- Tells whether the user may push to a list, which no request that changes nothing tells.
-- KEYS: a key that there is not
-- Result: a status, or the error of a user who may not
-- Complexity: O(1)
local key, refused = KEYS[1], "NOPERM this user has no permissions to run the 'rpush' command"
if redis.acl_check_cmd then
  if redis.acl_check_cmd('exists', key) and not redis.acl_check_cmd('rpush', key, '') then return {err = refused} end
  return {ok = 'OK'}
end
-- Redis before 7.0 has to be seen doing it.
local reply = redis.pcall('rpush', key, '')
if not failed(reply) then call('unlink', key)
elseif reply.err:find("can't run", 1, true) then return {err = refused} end
return {ok = 'OK'}
