-- now: returns the server's clock, in Unix milliseconds. clock: returns that, and the same time in microseconds.
local function now()
  local time = call('time')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
local function clock()
  local time = call('time')
  return time[1] * 1000 + math.floor(time[2] / 1000), time[1] * 1000000 + time[2]
end
