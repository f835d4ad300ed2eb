-- As deadlines.lua, for keys of a cluster node in any slots: a script without declared keys may access several slots.
-- uses: index, now
-- KEYS: each key followed by its shadow and its index
-- ARGV: the databases
-- Result: as deadlines.lua's, with -1 for a key that the node cannot serve
-- Reads only
-- Complexity: O(d k) for d databases and k keys
local _, exactly = clock()
local found = {}
for place = 1, #KEYS / 3 do found[place] = '' end
-- If the index is at another node, or is not a sorted set, use the shadow, if it is here.
local function earliest_of(key, shadow, index)
  local deadline = redis.pcall('zscore', index, key)
  if not failed(deadline) then return deadline end
  if deadline.err:find('cluster is down', 1, true) then call('zscore', index, key) end
  return not redis.pcall('type', key).err and first_of(shadow) or -1
end
for _, database in ipairs(ARGV) do
  if not redis.pcall('select', database).err then
    for place = 1, #found do
      local deadline = earliest_of(KEYS[3 * place - 2], KEYS[3 * place - 1], KEYS[3 * place])
      if deadline and (found[place] == '' or tonumber(deadline) < tonumber(found[place])) then
        found[place] = deadline
      end
    end
  end
end
return {exactly, found}
