-- Stands in for `lapse`, in a tenth of its text, for as long as nobody has asked to be told of members that expire: fails
-- with TELL, before it removes anything from a key, where somebody has. Needs discard before it. O(1) for each database.
local tally, asked = {0, 0, 0, 0, ''}, nil
local function elsewhere() asked = nil end
local function lapse(kind, key, shadow, index, members)
  if asked == nil then asked = call('exists', string.sub(index, 1, -6) .. 'events') == 1 end
  if asked then
    failure = {err = 'TELL who wants to know'}
    error(failure)
  end
  return discard(kind, key, members)
end
