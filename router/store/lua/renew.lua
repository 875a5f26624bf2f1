-- KEYS: routers   ARGV: owner lease_ms keep_ms   returns: {now_ms, 1 if the store knew a lease of owner, {owner, lease end, ...}}
-- Ended leases stay in the set, so that a lease that has ended differs from one that the store has lost.
local known = redis.call('ZSCORE', KEYS[1], ARGV[1]) and 1 or 0
redis.call('ZADD', KEYS[1], digits(now_ms + tonumber(ARGV[2])), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', digits(now_ms - tonumber(ARGV[3])))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return { now_ms, known, redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES') }
