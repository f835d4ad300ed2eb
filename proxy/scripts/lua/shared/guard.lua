-- Stands in front of a script that needs memory, on servers that do not read from its first line that it does: fails,
-- before anything has been done, if there is none left. This ZADD, of the proxy's own last key, changes nothing.
local guard = redis.pcall('zadd', KEYS[#KEYS], 'xx', 'gt', '-inf', '')
if type(guard) == 'table' and guard.err:find('OOM', 1, true) then return {err = guard.err:match('OOM[^\r\n]*')} end
