-- KEYS: open, then record and story of each group's request
-- ARGV: writer sent_s keep_ms grace_ms story_lines groups
--   groups: msgpack, a list of {transfer_id, attempt, lines}; a line is {posted_s, kind, word, note[, for_ms]};
--   kinds: o Opened (with for_ms), a Arrived, n Noted, c Closed
-- returns: {fenced, and of the last Arrived: verdict, state after, effects}
local writer, sent_s, keep_ms, grace_ms, story_lines =
  ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local fenced = 0
local verdict, last_state, last_effects = '', '', ''

local function load_record(key)
  local record, flat = {}, redis.call('HGETALL', key)
  for i = 1, #flat, 2 do record[flat[i]] = flat[i + 1] end
  return record
end

local function save_record(key, record)
  local flat = {}
  for field, value in pairs(record) do
    flat[#flat + 1] = field
    flat[#flat + 1] = value
  end
  redis.call('HSET', key, unpack(flat))
end

local function open(record, attempt, transfer_id, for_ms)
  if record[attempt .. ':outcome'] then return end
  record[attempt .. ':until'] = digits(now_ms + for_ms)
  redis.call('ZADD', KEYS[1], digits(now_ms + for_ms), transfer_id)
  if redis.call('PTTL', KEYS[1]) < for_ms + grace_ms then redis.call('PEXPIRE', KEYS[1], for_ms + grace_ms) end
end

local function close(record, attempt, transfer_id, outcome)
  record[attempt .. ':outcome'] = record[attempt .. ':outcome'] or outcome
  redis.call('ZREM', KEYS[1], transfer_id)
end

-- A closed request is kept for its readers, an open one until its deadline has passed by the grace.
local function ttl_ms(record)
  local until_ms = record[record.newest .. ':until']
  if record[record.newest .. ':outcome'] or not until_ms then return keep_ms end
  return math.max(until_ms - now_ms, 0) + grace_ms
end

-- Changes `record`; returns: state before, state after, effects.
local function arrive(record, attempt, arrival)
  local before
  verdict, before, last_state, last_effects = walk(record, attempt, arrival)
  if verdict == 'fenced' then
    fenced = fenced + 1
    return '', '', ''
  end
  return before, last_state, last_effects
end

for index, group in ipairs(cmsgpack.unpack(ARGV[6])) do
  local record_key, story_key = KEYS[2 * index], KEYS[2 * index + 1]
  local transfer_id, attempt, lines = group[1], group[2], group[3]
  local record, story = load_record(record_key), {}
  record.newest = math.max(tonumber(record.newest or '0'), attempt)
  for _, line in ipairs(lines) do
    local posted_s, kind, word, note = line[1], line[2], line[3], line[4]
    local before, after, effects = '', '', ''
    if kind == 'a' then
      before, after, effects = arrive(record, attempt, word)
    elseif kind == 'o' then
      open(record, attempt, transfer_id, line[5])
    elseif kind == 'c' then
      close(record, attempt, transfer_id, word)
    end
    local at_us = now_us - math.floor((sent_s - posted_s) * 1000000)
    story[#story + 1] = cmsgpack.pack({ at_us, posted_s, attempt, writer, word, note, before, after, effects })
  end
  save_record(record_key, record)
  redis.call('RPUSH', story_key, unpack(story, math.max(1, #story - story_lines + 1)))
  redis.call('LTRIM', story_key, -story_lines, -1)
  local ttl = ttl_ms(record)
  redis.call('PEXPIRE', record_key, ttl)
  redis.call('PEXPIRE', story_key, ttl)
end
return { fenced, verdict, last_state, last_effects }
