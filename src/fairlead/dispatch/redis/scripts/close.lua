-- close: begin a rebuild. Lines, leases, holds and what was measured are forgotten; the rules stay, and so does the
-- counter of names. An older epoch than the present one does nothing.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]            epoch
--
-- Returns {1 if closed else 0}.
--- @include scope

local epoch = tonumber(ARGV[5])
if scope.epoch and epoch < scope.epoch then
  return { 0 }
end
call('UNLINK', ENTRIES, ONLEASE)
local fields = { 'epoch', format('%d', epoch), 'open', '0' }
for _, service in ipairs(services) do
  local k = service.keys
  call('UNLINK', k.users, k.heads, k.line, k.seqs, k.idle, k.leases, k.holds, k.ends, k.slots)
  fields[#fields + 1] = 'state:' .. service.name
  take_new_state(service)
  fields[#fields + 1] = stored_state(service)
end
if scope.pool then
  local pool = new_pool()
  pool[3] = scope.pool[3]
  fields[#fields + 1] = 'pool'
  fields[#fields + 1] = pack(pool)
end
call('HSET', META, unpack(fields))
return { 1 }
