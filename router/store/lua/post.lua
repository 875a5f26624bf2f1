-- KEYS: open owned tickets, then the request of each group
-- ARGV: writer sent_s keep_ms grace_ms story_lines groups
--   groups: msgpack, a list of {transfer_id, attempt, lines}; a line is {posted_s, kind, word, note[, for_ms]};
--   kinds: o Opened (with for_ms), a Arrived, n Noted, c Closed
-- returns: {fenced, and of the last Arrived: verdict, state after, effects}
local writer, sent_s, keep_ms, grace_ms, story_lines =
  ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local fenced = 0
-- Tickets that this call opens (transfer id to ticket) and closes, put into the first three keys at its end.
-- `fresh` are those that no earlier call has opened: closed in this one, they need not be put in and taken out.
local opened, closed, fresh, latest_ms = {}, {}, {}, 0
local verdict, last_state, last_effects = '', '', ''

-- What a request's hash says about one attempt. A field that is not there is `false`.
local function load_attempt(key, number)
  local at = number .. ':'
  local newest, num_lines, state, early, until_ms, outcome = unpack(
    redis.call('HMGET', key, 'newest', 'lines', at .. 'state', at .. 'early', at .. 'until', at .. 'outcome')
  )
  return {
    number = number,
    newest = math.max(tonumber(newest or '0'), number),
    num_lines = tonumber(num_lines or '0'),
    state = state,
    early = early,
    until_ms = until_ms,
    outcome = outcome,
  }
end

local function save(key, attempt, fields)
  local at = attempt.number .. ':'
  fields.newest, fields.lines = attempt.newest, attempt.num_lines
  fields[at .. 'state'], fields[at .. 'early'] = attempt.state, attempt.early
  fields[at .. 'until'], fields[at .. 'outcome'] = attempt.until_ms, attempt.outcome
  local flat = {}
  for field, value in pairs(fields) do
    if value then
      flat[#flat + 1] = field
      flat[#flat + 1] = value
    end
  end
  redis.call('HSET', key, unpack(flat))
end

-- `ticket` is {mode, prefill, prefill epoch, decode, decode epoch, deadline in s, owner}.
local function open(attempt, transfer_id, ticket, for_ms)
  if attempt.outcome then return end
  fresh[transfer_id] = not attempt.until_ms
  attempt.until_ms = digits(now_ms + for_ms)
  opened[transfer_id] = { ticket[7], ticket[2], ticket[3], ticket[4], ticket[5], now_ms + for_ms }
  latest_ms = math.max(latest_ms, for_ms + grace_ms)
end

local function close(attempt, transfer_id, outcome)
  attempt.outcome = attempt.outcome or outcome
  closed[transfer_id] = not (opened[transfer_id] and fresh[transfer_id]) or nil
  opened[transfer_id] = nil
end

-- Who closes a ticket is its owner, or a reaper that has taken it out of `owned` before.
local function save_closed()
  local ids, names = {}, {}
  for transfer_id in pairs(closed) do
    ids[#ids + 1] = transfer_id
    names[#names + 1] = writer .. '\0' .. transfer_id
  end
  if #ids == 0 then return end
  redis.call('ZREM', KEYS[1], unpack(ids))
  redis.call('ZREM', KEYS[2], unpack(names))
  redis.call('HDEL', KEYS[3], unpack(ids))
end

local function save_opened()
  local due, names, records = {}, {}, {}
  for transfer_id, ticket in pairs(opened) do
    local at = #due
    due[at + 1], due[at + 2] = digits(ticket[6]), transfer_id
    names[at + 1], names[at + 2] = '0', ticket[1] .. '\0' .. transfer_id
    records[at + 1], records[at + 2] = transfer_id, cmsgpack.pack(ticket)
  end
  if #due == 0 then return end
  redis.call('ZADD', KEYS[1], unpack(due))
  redis.call('ZADD', KEYS[2], unpack(names))
  redis.call('HSET', KEYS[3], unpack(records))
  for index = 1, 3 do
    if redis.call('PTTL', KEYS[index]) < latest_ms then redis.call('PEXPIRE', KEYS[index], latest_ms) end
  end
end

-- Returns: state before, state after, effects.
local function arrive(attempt, arrival)
  local before
  verdict, before, last_state, last_effects = walk(attempt, arrival)
  if verdict == 'fenced' then
    fenced = fenced + 1
    return '', '', ''
  end
  return before, last_state, last_effects
end

-- Returns the line as the Story keeps it.
local function put_down(attempt, transfer_id, line)
  local posted_s, kind, word, note = line[1], line[2], line[3], line[4]
  local before, after, effects = '', '', ''
  if kind == 'a' then
    before, after, effects = arrive(attempt, word)
  elseif kind == 'o' then
    open(attempt, transfer_id, note, line[5])
  elseif kind == 'c' then
    close(attempt, transfer_id, word)
  end
  local at_us = now_us - math.floor((sent_s - posted_s) * 1000000)
  attempt.num_lines = attempt.num_lines + 1
  return cmsgpack.pack({
    attempt.num_lines, at_us, posted_s, attempt.number, writer, word, note, before, after, effects,
  })
end

-- A closed request is kept for its readers, an open one until its deadline has passed by the grace.
local function ttl_ms(key, attempt)
  local until_ms, outcome = attempt.until_ms, attempt.outcome
  if attempt.number < attempt.newest then
    until_ms, outcome = unpack(redis.call('HMGET', key, attempt.newest .. ':until', attempt.newest .. ':outcome'))
  end
  if outcome or not until_ms then return keep_ms end
  return math.max(until_ms - now_ms, 0) + grace_ms
end

for index, group in ipairs(cmsgpack.unpack(ARGV[6])) do
  local key, transfer_id, lines = KEYS[index + 3], group[1], group[3]
  local attempt, fields = load_attempt(key, group[2]), {}
  for _, line in ipairs(lines) do
    local packed = put_down(attempt, transfer_id, line)
    -- A ring: a new line takes the place of the oldest.
    fields['#' .. attempt.num_lines % story_lines] = packed
  end
  save(key, attempt, fields)
  redis.call('PEXPIRE', key, ttl_ms(key, attempt))
end
save_closed()
save_opened()
return { fenced, verdict, last_state, last_effects }
