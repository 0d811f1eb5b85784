-- renew: the heartbeat of one worker's leases.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]            worker
--   ARGV[6..]          names of leases
--
-- Returns {0, 1 if the scope is open else 0, names that are this worker's}; the others are lost, if they are nowhere.
--- @include scope

local wanted, found = {}, {}
for i = 6, #ARGV do
  wanted[#wanted + 1] = ARGV[i]
end
for _, service in ipairs(services) do
  local renewed = {}
  for i, stored in ipairs(read_many(service.keys.leases, wanted)) do
    if stored and unpack_of(stored)[5] == ARGV[5] then
      renewed[#renewed + 1] = format('%d', now + service.rules.ttl)
      renewed[#renewed + 1] = wanted[i]
      found[#found + 1] = wanted[i]
    end
  end
  call_many('ZADD', service.keys.expiry, renewed, 2)
end
return { 0, scope.open and 1 or 0, found }
