-- close: begin a rebuild of the scope. Deletes its queues, leases, holds and measurements, and keeps its rules and the
-- counter of its lease names. Does nothing if ARGV[5] is an older epoch than the scope has.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]            epoch
--
-- Returns {1 if closed else 0}.
--- @include scope
--- @include costs
--- @include windows

local epoch = tonumber(ARGV[5])
if scope.epoch and epoch < scope.epoch then
  return { 0 }
end
call('UNLINK', ENTRIES, ONLEASE)
local fields = { 'epoch', format('%d', epoch), 'open', '0' }
for _, service in ipairs(services) do
  local k = service.keys
  call('UNLINK', k.users, k.heads, k.line, k.seqs, k.idle, k.leases, k.holds, k.ends, k.slots,
    k.costs)
  take_new_state(service)
  if service.stored_costs then
    local costs = costs_of(service)
    service.costs = { costs[IN_SECONDS], costs[BY_USED], 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
    service.costs_changed = true
  end
  count_slots(service)
  add_state(fields, service)
end
if scope.pool then
  local pool = new_pool()
  pool[3] = scope.pool[3]
  fields[#fields + 1] = 'pool'
  fields[#fields + 1] = pack(pool)
end
if scope.rates then
  -- What the windows count is restored from the database; rests are learned again.
  call('UNLINK', KEYS[#KEYS - 1], KEYS[#KEYS])
  local windows = scope.rates.p and { scope.rates.p } or {}
  for _, of in pairs(scope.rates.s) do
    of.m = false
    windows[#windows + 1] = of.o
    for _, window in pairs(of.r) do
      windows[#windows + 1] = window
    end
  end
  for _, window in ipairs(windows) do
    for at = #window, W_FIRST, -1 do
      window[at] = nil
    end
    for at = W_REST, W_USED_UNITS do
      window[at] = 0
    end
    window[W_OLDER] = false
  end
  scope.rates.n = 0
  fields[#fields + 1] = 'rates'
  fields[#fields + 1] = pack(scope.rates)
end
call_many('HSET', META, fields, 2)
return { 1 }
