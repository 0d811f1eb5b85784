-- wait: register that this process has unused budget for these services, so that it receives wakeups.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]            services, joined by NUL
--
-- Returns {0}.
--- @include scope

local notified, bands, waiting_for = 0, nil, {}
local known = call('HGET', WAITERS, ARGV[3])
if known then
  local registered = unpack_of(known)
  notified, bands = registered[2], registered[4]
end
for _, name in ipairs(split(ARGV[5])) do
  waiting_for[name] = true
end
call('HSET', WAITERS, ARGV[3], pack({ now, notified, waiting_for, bands }))
return { 0 }
