-- wake: tell one waiting process per service that its lane is runnable.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]            services, joined by NUL
--
-- Returns {0, services this process is to wake for itself, joined by NUL}.
--- @include scope
--- @include lines
--- @include regions
--- @include pick
--- @include save

local woken = {}
for _, name in ipairs(split(ARGV[5])) do
  woken[name] = true
end
return { 0, wake(woken) }
