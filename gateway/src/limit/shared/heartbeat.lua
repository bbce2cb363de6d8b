-- Registers a gateway, and returns what all gateways must know.
--
-- KEYS[1]  the gateways: a hash of their ids and the times until which they count, in ms
-- KEYS[2]  the number of the newest change: a reset or a boost
-- ARGV[1]  the id of this gateway
-- ARGV[2]  for how long it counts from now, in ms; 0: it ends
--
-- Returns the time (seconds, microseconds), the number of the newest change, 1 if the store did not
-- know this gateway and 0 otherwise, and the ids of all gateways that count.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local lasts, fresh = tonumber(ARGV[2]), 0
if lasts > 0 then
  fresh = redis.call('HSET', KEYS[1], ARGV[1], now + lasts)
else
  redis.call('HDEL', KEYS[1], ARGV[1])
end
local reply = { clock[1], clock[2], redis.call('GET', KEYS[2]) or '0', tostring(fresh) }
local all = redis.call('HGETALL', KEYS[1])
for at = 1, #all, 2 do
  if tonumber(all[at + 1]) > now then
    reply[#reply + 1] = all[at]
  else
    redis.call('HDEL', KEYS[1], all[at])
  end
end
return reply
