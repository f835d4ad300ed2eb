-- Takes or keeps the sweeper's lease, in the database that is selected; gives 0, or the ms that another has it still.
-- An error of SET (no memory left for a lease) is none of the sweep, which frees some: two sweepers do no harm. O(1).
local function take(lease, who, milliseconds)
  if redis.pcall('get', lease) == who then
    call('pexpire', lease, milliseconds)
  elseif not redis.pcall('set', lease, who, 'px', milliseconds, 'nx') then
    local taken = call('pttl', lease)
    if taken >= 0 and taken <= tonumber(milliseconds) then return math.max(1, taken) end
    -- Nobody takes it for so long: the clock has been put back since, or something else stands there.
    redis.pcall('set', lease, who, 'px', milliseconds)
  end
  return 0
end
