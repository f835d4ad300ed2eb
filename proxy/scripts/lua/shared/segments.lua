-- Runs requests of one form for several keys in turn, and gives their replies in one array. Where the work for one key
-- fails, each of its requests gets that error.
-- text: for each key in turn its number among KEYS' pairs of a key and its shadow, and how many requests; before: how
-- many of KEYS stand in front of the pairs; first: of ARGV, the first that belongs to a request; width: how many to each.
-- work(replies, key, shadow, first, count) appends the replies.
local function segments(text, before, first, width, work)
  local replies = {}
  for number, count in text:gmatch('(%d+) (%d+)') do
    local place, size = before + 2 * number, #replies
    failure = nil
    local done, problem = pcall(work, replies, KEYS[place - 1], KEYS[place], first, tonumber(count))
    if not done then
      for position = size + 1, size + count do replies[position] = failure or error(problem, 0) end
    end
    first = first + count * width
  end
  return replies
end
