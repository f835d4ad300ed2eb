-- Takes or renews the sweeper's lease in the selected database. Returns 0, or for how many ms another proxy still has
-- the lease. Returns 0 even if SET fails (out of memory): a sweep frees memory, and two sweepers do no harm. O(1).
local function take(lease, who, milliseconds)
  if redis.pcall('get', lease) == who then
    call('pexpire', lease, milliseconds)
  elseif not redis.pcall('set', lease, who, 'px', milliseconds, 'nx') then
    local taken = call('pttl', lease)
    if taken >= 0 and taken <= tonumber(milliseconds) then return math.max(1, taken) end
    -- No lease lasts that long: the clock has been set back since, or the key is not a lease.
    redis.pcall('set', lease, who, 'px', milliseconds)
  end
  return 0
end
