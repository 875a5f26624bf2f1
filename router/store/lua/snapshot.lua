-- KEYS: leases instances loads draining   ARGV: none
-- returns: {now_ms, {id, lease end, ...}, {id, Instance record, ...}, {id, Load record, ...}, {draining id, ...}}
local ended = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', digits(now_ms))
-- A store that takes no heartbeats must not take this either: then leases end and nobody is dead. A full one refuses
-- only what could need memory, and only as a script's first write.
if ended[1] then redis.call('ZADD', KEYS[1], 'XX', '0', ended[1]) end
for _, id in ipairs(ended) do
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
