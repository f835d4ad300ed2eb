-- Runs the client's own request, which is the arguments from `first` on, and gives its reply as the server would: with
-- RESP3 types, which the server turns into what the client speaks, and with errors unchanged.
local function run(first)
  redis.setresp(3)
  local reply = redis.pcall(unpack(ARGV, first))
  redis.setresp(2)
  return reply
end
local function failed(reply) return type(reply) == 'table' and reply.err ~= nil end
