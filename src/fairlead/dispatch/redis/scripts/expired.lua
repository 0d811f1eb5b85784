-- expired: leases past their expiry. They keep their slots until released.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--
-- Returns {0, leases, thirteen values each, as add_row in include/grant.lua}.
--- @include scope
--- @include lines
--- @include grant

local rows = {}
for _, service in ipairs(services) do
  local past = call('ZRANGEBYSCORE', service.keys.expiry, '-inf', format('%d', now), 'WITHSCORES')
  for i = 1, #past, 2 do
    local stored = call('HGET', service.keys.leases, past[i])
    if stored then
      add_row(rows, read_lease(past[i], service, stored), tonumber(past[i + 1]))
    end
  end
end
return { 0, rows }
