-- Precedes a script whose keys are not all declared: all keys come in ARGV. So a cluster node treats the script like
-- the client's own request, even if the slot is being moved and the proxy's keys are at the other node.
-- ARGV: how many keys; the positions of those that must be at this node: shadows of keys with deadlines (a shadow at
--   the other node may hold deadlines that must become void); the keys; ARGV.
local undeclared, all = true, ARGV
local KEYS, ARGV, last = {}, {}, all[1] + 2
for place = 3, last do KEYS[place - 2] = all[place] end
for place = last + 1, #all do ARGV[place - last] = all[place] end
for place in all[2]:gmatch('%d+') do
  local there = redis.pcall('exists', KEYS[tonumber(place)])
  if type(there) == 'table' and not there.err:find('while the cluster is down', 1, true) then
    return {err = 'TRYAGAIN Multiple keys request during rehashing of slot'}
  end
end
