-- Runs SCAN, without the proxy's own keys. The cursor is the server's.
-- uses: run
-- ARGV: the reserved prefix; then the client's request
-- Result: the request's own, filtered
-- Reads only
-- Complexity: O(count), as SCAN
local reply, shown, prefix = run(2), {}, ARGV[1]
if failed(reply) then return reply end
for _, key in ipairs(reply[2]) do
  if key:sub(1, #prefix) ~= prefix then shown[#shown + 1] = key end
end
return {reply[1], shown}
