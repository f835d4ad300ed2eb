-- glob: parses a pattern; matches: returns whether a name matches a parsed pattern, as in KEYS.
-- O(p n) for a pattern of p bytes and a name of n.
local function element(pattern, at, byte)
  local one = pattern:byte(at)
  if one == 63 then return at + 1 end  -- ?
  if one == 91 then  -- [
    local found, negated = false, pattern:byte(at + 1) == 94  -- ^
    at = at + (negated and 2 or 1)
    while at <= #pattern do
      local first, last = pattern:byte(at), pattern:byte(at + 2)
      if first == 92 and at < #pattern then  -- \
        at = at + 1
        found = found or pattern:byte(at) == byte
      elseif first == 93 then break  -- ]
      elseif last and pattern:byte(at + 1) == 45 then  -- -
        at = at + 2
        found = found or byte >= math.min(first, last) and byte <= math.max(first, last)
      else
        found = found or first == byte
      end
      at = at + 1
    end
    return found ~= negated and at + 1
  end
  if one == 92 and at < #pattern then
    at = at + 1
    one = pattern:byte(at)
  end
  return one == byte and at + 1
end
local function glob(pattern)
  return {
    pattern = pattern, head = pattern:match('^[^*?%[\\]*'),
    tail = pattern:find('[%[\\]') and '' or pattern:reverse():match('^[^*?]*'):reverse(),
  }
end
local function matches(one, name)
  local pattern, head, tail = one.pattern, one.head, one.tail
  -- The pattern's ends rule out most names that do not match.
  if name:sub(1, #head) ~= head or tail ~= '' and name:sub(-#tail) ~= tail then return false end
  if name == '' then return pattern == '' or pattern == '*' end  -- as in servers
  local at, place, star, from = 1, 1, nil, nil
  while place <= #name do
    local byte = pattern:byte(at)
    if byte == 42 then  -- *
      at = at + 1
      if at > #pattern then return true end
      star, from = at, place
    else
      local after = byte and element(pattern, at, name:byte(place))
      if after then
        at, place = after, place + 1
      elseif star then
        from = from + 1
        at, place = star, from
      else
        return false
      end
    end
  end
  while pattern:byte(at) == 42 do at = at + 1 end
  return at > #pattern
end
