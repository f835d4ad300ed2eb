-- Converts deadlines of fields that the proxy's HEXPIRE and similar commands set before an upgrade into native TTLs:
-- the server's own commands see only those. The scores of such deadlines end in a half (expire_members.lua). A native
-- TTL that a field already has was set later and is kept. Needs index before it. O(log n) for each.
local function hand_over(key, shadow, index, fields, moment)
  local theirs = {}
  for _, field in ipairs(fields) do
    local deadline = tonumber(call('zscore', shadow, field) or nil)
    if deadline and deadline > moment and deadline % 1 == 0.5 then
      local set = {'hpexpireat', key, string.format('%.0f', deadline + 0.5), 'NX', 'FIELDS', 1, field}
      local known, allowed = pcall(redis.acl_check_cmd, unpack(set))
      local reply = known and allowed and redis.pcall(unpack(set))
      if reply and not failed(reply) and reply[1] ~= -2 then theirs[#theirs + 1] = field end
    end
  end
  if not theirs[1] then return end
  call('zrem', shadow, unpack(theirs))
  refresh(key, shadow, index)
end
