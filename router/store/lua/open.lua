-- KEYS: open   ARGV: grace_ms   returns: how many tickets are open; those long past their deadline are dropped
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', digits(now_ms - tonumber(ARGV[1])))
return redis.call('ZCARD', KEYS[1])
