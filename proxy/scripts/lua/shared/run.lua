-- Runs the client's own request, the arguments from `first` on, and returns its reply as the server would: with RESP3
-- types, which the server converts to the client's protocol, and errors unchanged. Protocol 2 for an array that may
-- contain nulls: Lua turns RESP3's nulls into holes, and the reply ends at the first. `behind` gets the reply if the
-- request has run. The reply stays if `behind` fails, for a right that the user has just lost: a deadline that it leaves
-- to an absent member is voided when the member is added.
local function run(first, protocol, behind)
  redis.setresp(protocol or 3)
  local reply = redis.pcall(unpack(ARGV, first))
  redis.setresp(2)
  if failed(reply) then return {err = told(reply.err, ARGV[first])} end
  if behind then pcall(behind, reply) end
  return reply
end
