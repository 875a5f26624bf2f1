-- KEYS: leases instances loads draining start   ARGV: id epoch lease_ms keep_ms load
-- returns: 1, or 0 when a newer start has claimed the id or the lease has ended
local id = ARGV[1]
if redis.call('HGET', KEYS[5], 'epoch') ~= ARGV[2] then return 0 end
local ends_at = tonumber(redis.call('ZSCORE', KEYS[1], id) or '0')
if ends_at <= now_ms then return 0 end
redis.call('ZADD', KEYS[1], digits(now_ms + tonumber(ARGV[3])), id)
redis.call('HSET', KEYS[3], id, ARGV[5])
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[4]) end
return 1
