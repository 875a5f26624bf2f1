-- KEYS: leases instances loads draining   ARGV: none
-- returns: {now_ms, {id, lease end, ...}, {id, Instance record, ...}, {id, Load record, ...}, {draining id, ...}}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', digits(now_ms))) do
  redis.call('ZREM', KEYS[1], id)
  redis.call('HDEL', KEYS[2], id)
  redis.call('HDEL', KEYS[3], id)
  redis.call('SREM', KEYS[4], id)
end
return {
  now_ms,
  redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES'),
  redis.call('HGETALL', KEYS[2]),
  redis.call('HGETALL', KEYS[3]),
  redis.call('SMEMBERS', KEYS[4]),
}
