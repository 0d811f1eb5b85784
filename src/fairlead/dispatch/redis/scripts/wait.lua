-- wait: register that this process has unused budget for these services, so that it receives wakeups.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]            services, joined by NUL
--
-- Returns {0}.
--- @include scope

local notified, waiting_for = 0, {}
local known = call('HGET', WAITERS, ARGV[3])
if known then
  notified = unpack_of(known)[2]
end
for _, name in ipairs(split(ARGV[5])) do
  waiting_for[name] = true
end
call('HSET', WAITERS, ARGV[3], pack({ now, notified, waiting_for }))
return { 0 }
