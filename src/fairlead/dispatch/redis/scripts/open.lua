-- open: end a rebuild, so that the scope grants steps again. A scope that was never closed has no epoch and stays closed.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]            the rebuild's epoch
--
-- Returns {1 if the scope is open at this epoch else 0, services for which to wake this process, joined by NUL,
-- rates_due()}.
--- @include scope
--- @include costs
--- @include queues
--- @include rates
--- @include pick
--- @include save

if scope.epoch ~= tonumber(ARGV[5]) then
  return { 0, '' }
end
if not scope.closed then
  return { scope.open and 1 or 0, '' }
end
scope.open = true
call('HSET', META, 'open', '1')
for _, service in ipairs(services) do
  touch(service)
end
return { 1, wake(save()), rates_due() }
