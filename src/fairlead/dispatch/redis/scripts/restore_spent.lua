-- restore_spent: let the rates of the scope that is being rebuilt count calls that ended before.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]            the rebuild's epoch
--   ARGV[6]            the database's clock in µs, by which the times below are given
--   ARGV[7..]          per call: service, region or empty, user, ended in µs, units in millionths, plan or empty, group
--                      or empty
--
-- Returns {1 if the scope is closed by this rebuild else 0, ''}.
--- @include scope
--- @include costs
--- @include queues
--- @include rates
--- @include pick
--- @include save

if not scope.closed or scope.epoch ~= tonumber(ARGV[5]) then
  return { 0, '' }
end
local ahead = now - tonumber(ARGV[6])
for i = 7, rates and #ARGV or 0, 7 do
  local service, region = by_name[ARGV[i]], ARGV[i + 1] ~= '' and ARGV[i + 1] or false
  if service then
    rates.spent(service, ARGV[i + 2], region, math.min(now, tonumber(ARGV[i + 3]) + ahead), tonumber(ARGV[i + 4]),
      ARGV[i + 5], ARGV[i + 6] ~= '' and ARGV[i + 6])
  end
end
return { 1, wake(save()) }
