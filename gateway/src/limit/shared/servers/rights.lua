-- Tries the commands of the other scripts. Returns of each its name, and the error it ended with.
--
-- KEYS[1]  a key of no other use: nothing stays there
local key, tried = KEYS[1], {}
local function try(command, ...)
  local reply = redis.pcall(command, ...)
  tried[#tried + 1] = command
  tried[#tried + 1] = type(reply) == 'table' and reply.err or ''
end
try('time')
try('get', key)
try('set', key, '', 'XX')
try('setrange', key, 0, '')
try('getrange', key, 0, 0)
try('hset', key, '', '')
try('hgetall', key)
try('hdel', key, '')
try('zadd', key, 'XX', 0, '')
try('zrangebyscore', key, 0, 0)
try('zremrangebyrank', key, 0, 0)
try('incr', key)
try('pexpire', key, 1)
try('del', key)
return tried
