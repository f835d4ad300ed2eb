-- Makes lifetimes of the server's own of the deadlines that HEXPIRE and its like have set of some fields while it lacked
-- these words: their scores end in a half (expire_members.lua). It has got them by an upgrade, and they would not see
-- others. Where a field has such a lifetime already, that was set later, and counts. Needs index before it. O(log n) each.
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
