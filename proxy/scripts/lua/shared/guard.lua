-- Precedes a script that needs memory, on servers that cannot read that need from its first line. If memory is used up,
-- the script fails before any change. The ZADD is on the last key, one of the proxy's own, and changes nothing.
local guard = redis.pcall('zadd', KEYS[#KEYS], 'xx', 'gt', '-inf', '')
if type(guard) == 'table' and guard.err:find('OOM', 1, true) then return {err = guard.err:match('OOM[^\r\n]*')} end
