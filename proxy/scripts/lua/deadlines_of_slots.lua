-- As deadlines.lua, of keys of a cluster node in any slots. No keys are declared: only so may a script look at several.
-- uses: now
-- KEYS: each key's index followed by the key
-- ARGV: the databases
-- Result: as deadlines.lua's; -1 for a key of which the node tells nothing
-- Complexity: O(d k) for d databases and k keys
local _, exactly = now()
local found = {}
for place = 1, #KEYS / 2 do found[place] = '' end
for _, database in ipairs(ARGV) do
  if not redis.pcall('select', database).err then
    for place = 1, #found do
      local deadline = redis.pcall('zscore', KEYS[2 * place - 1], KEYS[2 * place])
      if failed(deadline) then
        -- Something else in the index's place is no answer of the node's; it goes when the slot is swept, or healed.
        if not deadline.err:find('WRONGTYPE', 1, true) then found[place] = -1 end
      elseif deadline and (found[place] == '' or tonumber(deadline) < tonumber(found[place])) then
        found[place] = deadline
      end
    end
  end
end
return {exactly, found}
