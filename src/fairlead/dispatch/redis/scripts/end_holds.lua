-- end_holds: free the slots of holds whose time has come.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]            the time, in µs
--
-- Returns {how many ended, services this process is to wake for, joined by NUL}.
--- @include scope
--- @include lines
--- @include regions
--- @include pick
--- @include grant
--- @include holds
--- @include save

local ended = end_holds(tonumber(ARGV[5]))
return { ended, wake(save()) }
