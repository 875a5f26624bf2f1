-- KEYS: leases instances loads draining start   ARGV: id epoch lease_ms keep_ms record draining(0|1)
-- returns: 1, or 0 when a newer start has claimed the id
local id, epoch = ARGV[1], tonumber(ARGV[2])
local newest = tonumber(redis.call('HGET', KEYS[5], 'epoch') or '0')
if newest > epoch then return 0 end
if newest < epoch or ARGV[6] == '1' then
  redis.call('HSET', KEYS[5], 'epoch', ARGV[2], 'draining', ARGV[6])
end
redis.call('ZADD', KEYS[1], digits(now_ms + tonumber(ARGV[3])), id)
redis.call('HSET', KEYS[2], id, ARGV[5])
redis.call('HDEL', KEYS[3], id)
-- A start that said that it drains drains until the next one, also after a lost lease.
redis.call(redis.call('HGET', KEYS[5], 'draining') == '1' and 'SADD' or 'SREM', KEYS[4], id)
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[4]) end
return 1
