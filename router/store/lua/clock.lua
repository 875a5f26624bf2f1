-- The store's own clock, so that processes with wrong clocks agree on leases and deadlines.
local clock = redis.call('TIME')
local now_us = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local now_ms = math.floor(now_us / 1000)
-- Numbers of this size lose digits in Lua's own formatting.
local function digits(number) return string.format('%.0f', number) end
