-- KEYS: leases draining start   ARGV: id epoch draining(0|1)
-- returns: 1, or 0 when this start is not the newest or its lease has ended
if redis.call('HGET', KEYS[3], 'epoch') ~= ARGV[2] then return 0 end
local ends_at = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or '0')
if ends_at <= now_ms then return 0 end
redis.call('HSET', KEYS[3], 'draining', ARGV[3])
redis.call(ARGV[3] == '1' and 'SADD' or 'SREM', KEYS[2], ARGV[1])
redis.call('PEXPIRE', KEYS[2], redis.call('PTTL', KEYS[1]))
return 1
