-- Replaces `lapse`, at a tenth of its size, while there are no rules for events. In a database with rules it ends the
-- script before anything is removed there. The reply is then TELL, and how many members were removed in other
-- databases; it is a status, not an error: servers count errors. Needs discard before it. O(1) for each database.
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
local function pay_first() return 0 end
local function lapse(kind, key, shadow, index, members)
  heeded(key, index)
  local count = discard(kind, key, members)
  lapsed = lapsed + count
  return count
end
