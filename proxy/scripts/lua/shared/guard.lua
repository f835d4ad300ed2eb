-- Precedes a script that needs memory, on servers that cannot read that from its first line: fails before any change if
-- memory is used up. This ZADD, on the proxy's own last key, changes nothing.
local guard = redis.pcall('zadd', KEYS[#KEYS], 'xx', 'gt', '-inf', '')
if type(guard) == 'table' and guard.err:find('OOM', 1, true) then return {err = guard.err:match('OOM[^\r\n]*')} end
