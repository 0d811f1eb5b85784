-- release: give back slots.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5..]          the releases, as release_all in include/grant.lua
--
-- Returns {0, services this process is to wake for, joined by NUL}.
--- @include scope
--- @include lines
--- @include regions
--- @include pick
--- @include grant
--- @include save

release_all(5)
return { 0, wake(save()) }
