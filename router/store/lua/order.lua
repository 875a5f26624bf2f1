-- KEYS: orders   ARGV: name value keep_ms since   returns: 1
-- An empty value withdraws the order. `#since` stays when all are withdrawn: a store without it, or with another one, has
-- lost what it was told before.
redis.call('HSETNX', KEYS[1], '#since', ARGV[4])
if ARGV[2] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
