-- expired: list the leases whose expiry has passed. They keep their slots until they are released.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--
-- Returns {0}, then thirteen values per lease, as add_row in include/grant.lua.
--- @include scope
if scope.lost then
  return { 0 }
end
--- @include costs
--- @include queues
--- @include pick
--- @include grant
--- @include master

-- All leases of a service are scanned, but only if one of them may have expired. While leases are renewed, that happens
-- at most about once per TTL.
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
    local fields = {}
    add_state(fields, service)
    call('HSET', META, unpack(fields))
  end
end
return rows
