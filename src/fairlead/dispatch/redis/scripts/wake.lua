-- wake: notify, for each of these services, one of the processes that wait for it. The services are runnable.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]            services, joined by NUL
--
-- Returns {0, services for which to wake this process, joined by NUL}.
--- @include scope
--- @include costs
--- @include queues
--- @include pick
--- @include save

local runnable = {}
for _, name in ipairs(split(ARGV[5])) do
  runnable[name] = true
end
return { 0, wake(runnable) }
