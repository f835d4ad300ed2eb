-- Runs the client's own request, the arguments from `first` on, and returns its reply as the server would: with RESP3
-- types, which the server converts to the client's protocol, and with unchanged errors. `protocol` is 2 for an array
-- that may contain nulls: Lua turns RESP3's nulls into holes, and the reply would end at the first. `behind` is called
-- with the reply if the request has run. If `behind` fails, because the user has just lost a permission, the reply is
-- still returned. An absent member may then keep its deadline, which is voided when the member is added.
local function run(first, protocol, behind)
  redis.setresp(protocol or 3)
  local reply = redis.pcall(unpack(ARGV, first))
  redis.setresp(2)
  if failed(reply) then return {err = told(reply.err, ARGV[first])} end
  if behind then pcall(behind, reply) end
  return reply
end
