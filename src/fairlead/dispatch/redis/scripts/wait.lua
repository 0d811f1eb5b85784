-- wait: this process still waits with room for these services.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]            services, joined by NUL
--
-- Returns {0}.
--- @include scope

local told, waiting_for = 0, {}
local known = call('HGET', WAITERS, ARGV[3])
if known then
  told = unpack_of(known)[2]
end
for _, name in ipairs(split(ARGV[5])) do
  waiting_for[name] = true
end
call('HSET', WAITERS, ARGV[3], pack({ now, told, waiting_for }))
return { 0 }
