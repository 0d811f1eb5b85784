-- expire: set the expiry of leases to now. The leases keep their slots until they are released.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5..]          names of leases
--
-- Returns {0}.
--- @include scope
--- @include master

local names_of_leases = {}
for i = 5, #ARGV do
  names_of_leases[#names_of_leases + 1] = ARGV[i]
end

-- The packed lease, expiring now.
local function expiring(
  job, step, run, user, worker, granted, region, charged, weight, band, estimate, _, mask, units, sent_at, cost, group
)
  local stored = pack(job, step, run, user, worker, granted, region, charged, weight, band, estimate, now)
  if mask or cost then
    stored = stored .. pack(mask or false, units or false, sent_at or false, cost or false)
    stored = group and stored .. pack(group) or stored
  end
  return stored
end

for _, service in ipairs(services) do
  local written = {}
  for i, stored in ipairs(read_many(service.keys.leases, names_of_leases)) do
    if stored then
      written[#written + 1], written[#written + 2] = names_of_leases[i], expiring(unpack_of(stored))
    end
  end
  if #written > 0 then
    call_many('HSET', service.keys.leases, written, 2)
    expires_by(service, now)
    local fields = {}
    add_state(fields, service)
    call('HSET', META, unpack(fields))
  end
end
return { 0 }
