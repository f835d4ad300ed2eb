-- Voids the deadlines of absent members in ARGV that a request is about to add, because they begin a new life. Removes
-- due members first: a deadline may have passed while the request was under way.
-- Returns the present members whose deadlines end when the member is overwritten (expire_members.lua). O(log n) for
-- each, O(n) in a list.
local function renew(key, shadow, index, first, last, step)
  local kind = call('type', key).ok
  if kind == 'none' or kind == 'string' then return drop(key, shadow, index) end
  local void, moment, over = false, nil, {}
  for position = first, last, step do
    local member = ARGV[position]
    local deadline = call('zscore', shadow, member)
    if deadline and tonumber(deadline) > 0 then
      moment = moment or now()
      if tonumber(deadline) <= moment then
        overdue(kind, key, shadow, index, member, tonumber(deadline), moment)
      end
    end
    -- A void deadline of a member that is present again belongs to an earlier life.
    if deadline and (tonumber(deadline) < 0 or not has(kind, key, member)) then
      call('zrem', shadow, member)
      void = true
    elseif deadline and tonumber(deadline) % 1 ~= 0 then
      over[#over + 1] = member
    end
  end
  if void then refresh(key, shadow, index) end
  return over
end
