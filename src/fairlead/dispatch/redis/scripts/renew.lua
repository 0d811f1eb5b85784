-- renew: extend the leases of one worker (the heartbeat).
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]            worker
--   ARGV[6..]          names of leases
--
-- Returns {0, 1 if the scope is open else 0}, then the names of the leases that this worker still has in this scope. The
-- other leases are lost, unless another scope has them.
--- @include scope
--- @include master
if scope.lost then
  return { 0, 0 }
end

local names_of_leases, reply = {}, { 0, scope.open and 1 or 0 }
for i = 6, #ARGV do
  names_of_leases[#names_of_leases + 1] = ARGV[i]
end

-- The packed lease with a new expiry; nil if another worker holds it.
local function renewed(expires, job, step, run, user, worker, ...)
  if worker == ARGV[5] then
    local granted, region, charged, weight, band, estimate, _, mask, units, sent_at, cost, group = ...
    local stored = pack(job, step, run, user, worker, granted, region, charged, weight, band, estimate, expires)
    if mask or cost then
      stored = stored .. pack(mask or false, units or false, sent_at or false, cost or false)
      stored = group and stored .. pack(group) or stored
    end
    return stored
  end
end

for _, service in ipairs(services) do
  local written, expires, due = {}, now + service.ttl, service.due
  for i, stored in ipairs(read_many(service.keys.leases, names_of_leases)) do
    local lease = stored and renewed(expires, unpack_of(stored))
    if lease then
      written[#written + 1], written[#written + 2] = names_of_leases[i], lease
      reply[#reply + 1] = names_of_leases[i]
      expires_by(service, expires)
    end
  end
  call_many('HSET', service.keys.leases, written, 2)
  if service.due ~= due then -- the TTL was lowered
    local fields = {}
    add_state(fields, service)
    call('HSET', META, unpack(fields))
  end
end
return reply
