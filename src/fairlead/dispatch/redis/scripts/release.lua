-- release: end leases and free their slots.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5..]          the releases, as release_all in include/grant.lua
--
-- Returns {0, services for which to wake this process, joined by NUL, rates_due()}.
--- @include scope
if scope.lost then
  return { 0, '' } -- the rebuild loads the state from the database
end
--- @include costs
--- @include queues
--- @include rates
--- @include pick
--- @include grant
--- @include save

release_all(5)
return { 0, wake(save()), rates_due() }
