-- Stands in for `lapse`, in a tenth of its text, for as long as nobody has asked to be told of members that expire: ends
-- with TELL, before it removes anything in a database, where somebody has; the reply tells how many members have gone
-- from others. It is no error: servers count those. Needs discard before it. O(1) for each database.
local tally, asked, lapsed = {0, 0, 0, 0, '', 0, 0}, nil, 0
local function elsewhere() asked = nil end
local function heeded(key, index)
  if asked == nil then asked = call('exists', string.sub(index, 1, -6) .. 'events') == 1 end
  if asked then
    failure = {ok = 'TELL ' .. lapsed}
    error(failure)
  end
  return false
end
local function lapse(kind, key, shadow, index, members)
  heeded(key, index)
  local count = discard(kind, key, members)
  lapsed = lapsed + count
  return count
end
