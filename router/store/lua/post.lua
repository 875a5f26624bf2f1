-- KEYS: open, then record and story of each request
-- ARGV: writer keep_ms grace_ms story_lines waited_us lines
--   lines: msgpack, for each request a list of {age_us, line_no, attempt, kind, word, note[, transfer_id[, for_ms]]}
-- returns: {fenced, absent, and of the last Arrived: verdict, state after, effects}
local writer, keep_ms, grace_ms, story_lines = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local count = { fenced = 0, absent = 0, moved = 0, early = 0 }
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
  local until_ms = now_ms + for_ms
  record[attempt .. ':until'] = digits(until_ms)
  redis.call('ZADD', KEYS[1], digits(until_ms), transfer_id)
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

local sent_us = now_us - tonumber(ARGV[5])
for group, lines in ipairs(cmsgpack.unpack(ARGV[6])) do
  local record_key, story_key = KEYS[2 * group], KEYS[2 * group + 1]
  local record, story = load_record(record_key), {}
  for _, line in ipairs(lines) do
    local age_us, line_no, attempt, kind, word, note = unpack(line, 1, 6)
    local before, after, effects = '', '', ''
    if kind == 'o' or kind == 'a' then record.newest = math.max(tonumber(record.newest or '0'), attempt) end
    if kind == 'o' then
      open(record, attempt, line[7], line[8])
    elseif kind == 'c' then
      record.newest = record.newest or attempt
      close(record, attempt, line[7], word)
    elseif kind == 'a' then
      verdict, before, after, effects = walk(record, attempt, word)
      count[verdict] = count[verdict] + 1
      last_state, last_effects = after, effects
      if verdict == 'fenced' or verdict == 'absent' then before, after = '', '' end
    end
    story[#story + 1] = cmsgpack.pack({ sent_us - age_us, line_no, attempt, writer, word, note, before, after, effects })
  end
  record.newest = record.newest or 1
  save_record(record_key, record)
  redis.call('RPUSH', story_key, unpack(story, math.max(1, #story - story_lines + 1)))
  redis.call('LTRIM', story_key, -story_lines, -1)
  local ttl = ttl_ms(record)
  redis.call('PEXPIRE', record_key, ttl)
  redis.call('PEXPIRE', story_key, ttl)
end
return { count.fenced, count.absent, verdict, last_state, last_effects }
