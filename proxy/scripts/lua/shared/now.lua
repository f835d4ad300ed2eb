-- now: returns the server's clock, in Unix milliseconds. clock: returns that, and the same time in microseconds.
-- past: returns the time up to which deadlines count as passed. If due members were removed in front of the requests of
-- a transaction (`cleared`), deadlines of the last 50 ms do not count: these requests must all see the same moment.
local function now()
  local time = call('time')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
local function clock()
  local time = call('time')
  return time[1] * 1000 + math.floor(time[2] / 1000), time[1] * 1000000 + time[2]
end
local function past(moment, cleared) return cleared and moment - 50 or moment end
