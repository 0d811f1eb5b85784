-- hold: keep slots taken until a time. A hold is ignored if its key exists or its time is over.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]            the version of the caller's rules, or empty
--   ARGV[6]            the database's clock in µs
--   ARGV[7..]          per hold: key, job, service, region or empty, until in µs, band
--
-- Returns {0, services for which to wake this process, joined by NUL, rates_due()}; or {-2, ''}, without any change, if
-- newer rules than the caller's have moved a service out of this scope.
--- @include scope
--- @include outdated
for i = 9, outdated and #ARGV or 0, 6 do
  if not outdated[ARGV[i]] then
    return { -2, '' }
  end
end
if scope.lost then
  return { 0, '' } -- the rebuild loads the state from the database
end
--- @include costs
--- @include queues
--- @include rates
--- @include pick
--- @include grant
--- @include holds
--- @include save

for i = 7, #ARGV, 6 do
  keep_hold(i, now - tonumber(ARGV[6]))
end
return { 0, wake(save()), rates_due() }
