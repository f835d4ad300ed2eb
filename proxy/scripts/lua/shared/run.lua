-- Runs the client's own request, which is the arguments from `first` on, and gives its reply as the server would: with
-- RESP3 types, which the server turns into what the client speaks, and with errors unchanged. Protocol 2 for an array
-- that may have nulls in it: of RESP3's nulls Lua makes holes, and the reply ends at the first.
local function run(first, protocol)
  redis.setresp(protocol or 3)
  local reply = redis.pcall(unpack(ARGV, first))
  redis.setresp(2)
  if failed(reply) then return {err = told(reply.err, ARGV[first])} end
  return reply
end
