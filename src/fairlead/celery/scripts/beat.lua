-- Record a worker's heartbeat, the tasks it runs and the queues it consumes.
-- ARGV[3]: the worker; ARGV[4]: the tickets it runs, as JSON; '' when it stops. ARGV[5]: the queues it consumes, as JSON;
-- ARGV[6]: its balancer's number of queues and `worker_ttl`, as JSON.
--- @include ledger
local workers = 'fairlead:celery:' .. prefix .. ':workers'
local consumed = 'fairlead:celery:' .. prefix .. ':consumed'
local balancers = 'fairlead:celery:balancers'
if ARGV[4] == '' then
  redis.call('HDEL', workers, ARGV[3])
  redis.call('HDEL', consumed, ARGV[3])
else
  redis.call('HSET', workers, ARGV[3], string.format('%.0f ', now()) .. ARGV[4])
  redis.call('HSET', consumed, ARGV[3], ARGV[5])
  redis.call('HSET', balancers, prefix, ARGV[6])
  for _, key in ipairs({workers, consumed, balancers}) do redis.call('EXPIRE', key, ttl) end
end
