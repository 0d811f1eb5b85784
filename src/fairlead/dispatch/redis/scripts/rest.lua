-- rest: obey what upstreams said about their limits.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5..]          per rest: service, region or empty, µs, requests or empty, units in millionths or empty
--
-- Returns {0, services for which to wake this process, joined by NUL, rates_due()}.
--- @include scope
if scope.lost then
  return { 0, '', '' }
end
scope.rates = scope.rates or { s = {}, n = 0, p = false }
--- @include costs
--- @include queues
--- @include rates
--- @include pick
--- @include save

for i = 5, #ARGV, 5 do
  local service, region = by_name[ARGV[i]], ARGV[i + 1] ~= '' and ARGV[i + 1] or nil
  if service then
    rates.rest(service, region, tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4]))
  end
end
return { 0, wake(save()), rates_due() }
