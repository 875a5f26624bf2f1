-- KEYS: budgets   ARGV: owner lease_ms keep_ms answered_before, then for each budget twice (requests, tokens): total keeps target wants
-- returns: for each budget {granted requests, granted tokens, in doubt, other owner, its wants, ...}
-- A lease of 0 gives everything back. A total of -1 is no limit.
local owner, lease_ms = ARGV[1], tonumber(ARGV[2])
-- A server that has just started, or does not know whom it has answered, has forgotten what others hold.
local function forgetful()
  if ARGV[4] == '1' then return true end
  local uptime_s = string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)')
  return tonumber(uptime_s or '0') * 1000 < lease_ms
end
local function in_doubt(key)
  local seen_ms = tonumber(redis.call('HGET', key, '#seen') or '0')
  local until_ms = tonumber(redis.call('HGET', key, '#doubt') or '0')
  local away = seen_ms > 0 and now_ms - seen_ms > lease_ms / 2
  if away or (seen_ms == 0 and forgetful()) then until_ms = now_ms + lease_ms end
  redis.call('HSET', key, '#seen', digits(now_ms), '#doubt', digits(until_ms))
  return now_ms < until_ms
end
local function granted(question, others, doubt)
  local total, keeps, target = question[1], question[2], question[3]
  if total < 0 or doubt then return keeps end
  return math.max(keeps, math.min(target, total - others))
end
local replies = {}
for number, key in ipairs(KEYS) do
  local function asked(kind)
    local first = 5 + (number - 1) * 8 + kind * 4
    return { tonumber(ARGV[first]), tonumber(ARGV[first + 1]), tonumber(ARGV[first + 2]), tonumber(ARGV[first + 3]) }
  end
  local requests, tokens = asked(0), asked(1)
  local doubt = lease_ms > 0 and in_doubt(key)
  local sums, others = { 0, 0 }, {}
  local fields = redis.call('HGETALL', key)
  for at = 1, #fields, 2 do
    local name = fields[at]
    if name ~= owner and string.sub(name, 1, 1) ~= '#' then
      local held = cmsgpack.unpack(fields[at + 1])
      if held[1] > now_ms or doubt then
        sums[1], sums[2] = sums[1] + held[2], sums[2] + held[3]
        others[#others + 1] = { name, held[4], held[5] }
      else
        redis.call('HDEL', key, name)
      end
    end
  end
  local r, t = granted(requests, sums[1], doubt), granted(tokens, sums[2], doubt)
  if lease_ms > 0 then
    redis.call('HSET', key, owner, cmsgpack.pack({ now_ms + lease_ms, r, t, requests[4], tokens[4] }))
    redis.call('PEXPIRE', key, ARGV[3])
  else
    redis.call('HDEL', key, owner)
  end
  local reply = { r, t, doubt and 1 or 0 }
  for _, other in ipairs(others) do
    for _, part in ipairs(other) do reply[#reply + 1] = part end
  end
  replies[number] = reply
end
return replies
