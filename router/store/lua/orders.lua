-- KEYS: orders   ARGV: keep_ms   returns: {name, value, ...}
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return redis.call('HGETALL', KEYS[1])
