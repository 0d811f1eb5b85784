-- release: give back slots.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5..]          per release: lease, service, `1` for a refund
--
-- Returns {0, services this process is to wake for}.
--- @include scope
--- @include lines
--- @include grant
--- @include save

local releases = {}
for i = 5, #ARGV, 3 do
  releases[#releases + 1] = { ARGV[i], ARGV[i + 1], ARGV[i + 2] == '1' }
end
release_all(releases)
return { 0, wake(save()) }
