-- KEYS: open   ARGV: grace_ms   returns: how many tickets are open, less those that nobody has closed for too long
return redis.call('ZCOUNT', KEYS[1], digits(now_ms - tonumber(ARGV[1])), '+inf')
