-- Runs RANDOMKEY until the key is not the proxy's own. Every second key may be a shadow, so after some draws the
-- script scans the database in bounded steps.
-- ARGV: the reserved prefix
-- Result: a key, or nil
-- Reads only
-- Complexity: O(1), at most 100 draws and 1000 steps of SCAN
local prefix = ARGV[1]
for _ = 1, 100 do
  local key = call('randomkey')
  if not key or key:sub(1, #prefix) ~= prefix then return key end
end
local cursor = '0'
for _ = 1, 1000 do
  local page = call('scan', cursor, 'count', 100)
  for _, key in ipairs(page[2]) do
    if key:sub(1, #prefix) ~= prefix then return key end
  end
  cursor = page[1]
  if cursor == '0' then break end
end
return false
