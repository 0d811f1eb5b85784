-- A worker says that it lives and what it runs.
-- ARGV[3]: the worker; ARGV[4]: the tickets it runs, as JSON; '' when it leaves.
--- @include ledger
local workers = 'fairlead:celery:' .. prefix .. ':workers'
if ARGV[4] == '' then
  redis.call('HDEL', workers, ARGV[3])
else
  redis.call('HSET', workers, ARGV[3], string.format('%.0f ', now()) .. ARGV[4])
  redis.call('EXPIRE', workers, ttl)
end
