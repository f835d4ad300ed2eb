-- Every script begins with this piece. `call` is redis.call, but errors are as a client would get them: with their own
-- error code, without the script's name and line. `told`: returns an error of the named command in that form. `far`:
-- returns whether an error means that a cluster node does not have a key.
-- For c
local function far(text)
  return text:find('ttempted to access a non local key', 1, true) or text:find('keys were accessed during rehashing', 1, true)
end
-- For all
local function told(err, name)
  -- Redis 6.2 puts the script's line in front of some errors, and a minus and a line break around them.
  local place, text = err:match('^(@user_script: %d+: )%-?(.-)%s*$')
  text = text or err
  -- For c
  -- A key of the client's own request is not there: its slot is being moved.
  if far(text) then
    return 'TRYAGAIN Multiple keys request during rehashing of slot'
  end
  if text:find('while the cluster is down', 1, true) then return 'CLUSTERDOWN The cluster is down' end
  -- For all
  local said = text:match('^ERR ACL failure in script: (.*)')
  if said then return 'NOPERM ' .. said end
  said = text:match("The user executing the script can't (%a+)")
  if said == 'run' then
    return "NOPERM this user has no permissions to run the '" .. name:lower() .. "' command"
      .. (place and ' or its subcommand' or '')
  end
  return said and 'NOPERM this user has no permissions to access one of the keys used as arguments' or text
end
local function failed(reply) return type(reply) == 'table' and reply.err ~= nil end
-- For c
-- While a slot is being moved to another cluster node, a script may not access a missing key of it, not even one that
-- it has just removed itself. Treat such a key as one that does not exist.
local absent = {type = {ok = 'none'}, zscore = false, lpos = false, zrangebyscore = {}, zrevrangebyscore = {}, exists = 0,
  unlink = 0, zrem = 0, zcard = 0, sismember = 0, hexists = 0, srem = 0, hdel = 0, lrem = 0}
-- For all
local failure
local function call(...)
  local reply = redis.pcall(...)
  if failed(reply) then
    -- For c
    local nothing = absent[(...)]
    if nothing ~= nil and far(reply.err) then return nothing end
    -- For all
    failure = {err = told(reply.err, (...))}
    error(failure)
  end
  return reply
end
