-- hold: keep slots taken until their time; a hold already known, or over, is not counted.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5..]          per hold: key, job, service, region or empty, until in µs, band
--
-- Returns {0, services this process is to wake for, joined by NUL}.
--- @include scope
--- @include lines
--- @include regions
--- @include pick
--- @include grant
--- @include holds
--- @include save

for i = 5, #ARGV, 6 do
  keep_hold(i)
end
return { 0, wake(save()) }
