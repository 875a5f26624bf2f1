-- KEYS: open owned tickets   ARGV: claim_ms late_ms limit gone_owners
-- returns: {now_ms, {owner of tickets that nobody has claimed, ...}, {transfer id, ticket record, ...}}
-- Claims up to `limit` tickets whose owner is among the gone, or that are `late_ms` past their time. A claimed ticket is
-- its claimer's for `claim_ms`; unless it is closed by then, it is claimed again. Each is due on its own: no ticket
-- hides another.
local claim_ms, late_ms, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local MAX_OWNERS = 1024
local ids, names = {}, {}
-- Requests that come and go in one call of `post` do not touch these, and a server short of memory evicts by last touch.
redis.call('TOUCH', KEYS[1], KEYS[2], KEYS[3])

-- A ticket may be late as well as its owner gone.
local function take(transfer_id)
  if ids[transfer_id] then return end
  ids[transfer_id] = true
  ids[#ids + 1] = transfer_id
end

for index = 4, #ARGV do
  local owner = ARGV[index]
  local first, last = '[' .. owner .. '\0', '(' .. owner .. '\1'
  for _, name in ipairs(redis.call('ZRANGEBYLEX', KEYS[2], first, last, 'LIMIT', 0, limit - #ids)) do
    names[#names + 1] = name
    take(string.sub(name, #owner + 2))
  end
end
local late = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', digits(now_ms - late_ms), 'LIMIT', 0, limit - #ids)
for _, transfer_id in ipairs(late) do take(transfer_id) end

local claims, claimed, unknown = {}, {}, {}
local records = #ids > 0 and redis.call('HMGET', KEYS[3], unpack(ids)) or {}
for index, record in ipairs(records) do
  local transfer_id = ids[index]
  if record then
    claims[#claims + 1] = digits(now_ms + claim_ms - late_ms)
    claims[#claims + 1] = transfer_id
    claimed[#claimed + 1] = transfer_id
    claimed[#claimed + 1] = record
    local read, ticket = pcall(cmsgpack.unpack, record)
    if read and type(ticket) == 'table' then names[#names + 1] = tostring(ticket[1]) .. '\0' .. transfer_id end
  else
    unknown[#unknown + 1] = transfer_id
  end
end
if #unknown > 0 then redis.call('ZREM', KEYS[1], unpack(unknown)) end
if #claims > 0 then redis.call('ZADD', KEYS[1], unpack(claims)) end
if #names > 0 then redis.call('ZREM', KEYS[2], unpack(names)) end
for index = 1, 3 do
  local left_ms = redis.call('PTTL', KEYS[index])
  if #claims > 0 and left_ms < 2 * claim_ms then redis.call('PEXPIRE', KEYS[index], 2 * claim_ms) end
end

-- One step per owner, however many tickets each has.
local owners, after = {}, '-'
while #owners < MAX_OWNERS do
  local name = redis.call('ZRANGEBYLEX', KEYS[2], after, '+', 'LIMIT', 0, 1)[1]
  if not name then break end
  owners[#owners + 1] = string.match(name, '^[^%z]*')
  after = '(' .. owners[#owners] .. '\1'
end
return { now_ms, owners, claimed }
