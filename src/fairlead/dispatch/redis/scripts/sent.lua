-- sent: record when the calls of leases were sent, for the rates that count them.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5..]          per report: lease, service, µs, at most, from the grant until the call was sent
--
-- Returns {0, services for which to wake this process, joined by NUL, rates_due()}.
--- @include scope
if scope.lost or not scope.rates then
  return { 0, '', '' }
end
--- @include costs
--- @include queues
--- @include rates
--- @include pick
--- @include save

local function report(service, name, after, stored)
  local job, step, run, user, worker, granted, region, charged, weight, band, estimate, expires, mask, units, sent_at,
    cost, group = unpack_of(stored)
  if mask and not sent_at then
    sent_at = rates.sent(service, user, region, mask, units, granted, after, group)
    call('HSET', service.keys.leases, name, pack(job, step, run, user, worker, granted, region, charged, weight, band,
      estimate, expires, mask, units, sent_at, cost or false) .. (group and pack(group) or ''))
  end
end

for i = 5, #ARGV, 3 do
  local service = by_name[ARGV[i + 1]]
  local stored = service and call('HGET', service.keys.leases, ARGV[i])
  if stored then
    report(service, ARGV[i], tonumber(ARGV[i + 2]), stored)
  end
end
return { 0, wake(save()), rates_due() }
