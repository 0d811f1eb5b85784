-- expired: leases past their expiry. They keep their slots until released.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--
-- Returns {0}, then the leases, thirteen values each, as add_row in include/grant.lua.
--- @include scope
--- @include lines
--- @include regions
--- @include pick
--- @include grant
--- @include master

-- All leases of a service are looked through, but only when one may have expired: while they are renewed, not before
-- most of their TTL has passed again.
local rows = { 0 }
for _, service in ipairs(services) do
  if service.due and service.due <= now then
    local stored = call('HGETALL', service.keys.leases)
    service.due = false
    for i = 1, #stored, 2 do
      local lease = read_lease(stored[i], service, stored[i + 1])
      expires_by(service, lease.expires)
      if lease.expires <= now then
        add_row(rows, lease)
      end
    end
    call('HSET', META, 'state:' .. service.name, stored_state(service))
  end
end
return rows
