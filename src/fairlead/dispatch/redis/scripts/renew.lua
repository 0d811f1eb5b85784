-- renew: the heartbeat of one worker's leases.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]            worker
--   ARGV[6..]          names of leases
--
-- Returns {0, 1 if the scope is open else 0}, then the names that are this worker's; the others are lost, if they are
-- nowhere.
--- @include scope
--- @include master

local wanted, found = {}, { 0, scope.open and 1 or 0 }
for i = 6, #ARGV do
  wanted[#wanted + 1] = ARGV[i]
end

-- The lease as it is stored, with another time to expire at; nil if it is not this worker's.
local function renewed(expires, job, step, run, user, worker, ...)
  if worker == ARGV[5] then
    local granted, region, charged, weight, band, estimate = ...
    return pack(job, step, run, user, worker, granted, region, charged, weight, band, estimate, expires)
  end
end

for _, service in ipairs(services) do
  local written, expires, due = {}, now + service.ttl, service.due
  for i, stored in ipairs(read_many(service.keys.leases, wanted)) do
    local lease = stored and renewed(expires, unpack_of(stored))
    if lease then
      written[#written + 1], written[#written + 2] = wanted[i], lease
      found[#found + 1] = wanted[i]
      expires_by(service, expires)
    end
  end
  call_many('HSET', service.keys.leases, written, 2)
  if service.due ~= due then -- the TTL was lowered
    call('HSET', META, 'state:' .. service.name, stored_state(service))
  end
end
return found
