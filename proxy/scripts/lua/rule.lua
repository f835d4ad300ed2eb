-- Sets the rule for events of one pattern, in place of an existing rule; or removes the rule.
-- uses: mend
-- KEYS: the rules for events
-- ARGV: the database; the rule, or '' to remove the rule; the pattern as in rules: its size, ':' and the pattern;
--   how many rules there may be
-- Result: how many rules the pattern had; -1 if there are too many rules; -2 if the database does not exist
-- Complexity: O(r) for r rules
if redis.pcall('select', ARGV[1]).err then return -2 end
mend(KEYS[1])
local had, rules = 0, call('zrangebyscore', KEYS[1], '-inf', '+inf')
for _, rule in ipairs(rules) do
  local from = select(2, string.find(rule, '^%d+ [01] %d+ %a*%-%d* '))
  if from and string.sub(rule, from + 1, from + #ARGV[3]) == ARGV[3] then had = had + call('zrem', KEYS[1], rule) end
end
if ARGV[2] ~= '' then
  if had == 0 and #rules >= tonumber(ARGV[4]) then return -1 end
  call('zadd', KEYS[1], 0, ARGV[2])
end
return had
