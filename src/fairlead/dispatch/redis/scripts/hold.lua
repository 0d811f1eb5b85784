-- hold: keep slots taken until their time; a hold already known, or over, is not counted.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5..]          per hold: key, job, service, region or empty, until in µs
--
-- Returns {0, services this process is to wake for}.
--- @include scope
--- @include lines
--- @include grant
--- @include save

for i = 5, #ARGV, 5 do
  local region = ARGV[i + 3] ~= '' and ARGV[i + 3] or false
  keep_hold(by_name[ARGV[i + 2]], ARGV[i], ARGV[i + 1], region, tonumber(ARGV[i + 4]))
end
return { 0, wake(save()) }
