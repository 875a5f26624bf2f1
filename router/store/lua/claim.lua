-- KEYS: start   ARGV: keep_ms   returns: the new epoch
local last = tonumber(redis.call('HGET', KEYS[1], 'epoch') or '0')
local epoch = math.max(now_ms, last + 1)
redis.call('HSET', KEYS[1], 'epoch', digits(epoch), 'draining', '0')
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return epoch
