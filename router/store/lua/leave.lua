-- KEYS: leases instances loads draining start   ARGV: id epoch
-- returns: 1, or 0 when this start is not the newest; a newer one stays
if redis.call('HGET', KEYS[5], 'epoch') ~= ARGV[2] then return 0 end
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[3], ARGV[1])
redis.call('SREM', KEYS[4], ARGV[1])
return 1
