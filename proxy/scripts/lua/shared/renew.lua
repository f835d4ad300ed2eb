-- Voids the deadlines of those members in ARGV that are absent, as a request is about to add them: they begin a new life.
-- What is due goes first, as the request may have been under way while a deadline passed; unless it was `cleared` in
-- front of the requests of a transaction, which are to see one moment. Gives those that stay and whose deadlines end when
-- they are written over (expire_members.lua). O(log n) for each, O(n) in a list.
local function renew(key, shadow, index, first, last, step, cleared)
  local kind = call('type', key).ok
  if kind == 'none' or kind == 'string' then return drop(key, shadow, index) end
  local void, moment, over = false, nil, {}
  for position = first, last, step do
    local member = ARGV[position]
    local deadline = call('zscore', shadow, member)
    if deadline and tonumber(deadline) > 0 then
      moment = moment or now()
      if tonumber(deadline) <= moment then
        overdue(kind, key, shadow, index, member, tonumber(deadline), moment, cleared)
      end
    end
    -- A void one of a member that is there again is an earlier life's, and tells nothing any more.
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
