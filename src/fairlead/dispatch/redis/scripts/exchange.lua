-- exchange: release slots and claim the next steps, in one operation.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]   worker
--   ARGV[6]   the maximum number of steps to take from this scope
--   ARGV[7]   the claim's services of this scope, joined by NUL
--   ARGV[8]   the claim's bands, as digits in order
--   ARGV[9]   `1` and the claim's regions joined by NUL; empty: any. If some regions have no live worker, there follow
--             a byte 1, and these as service:region, joined by NUL
--   ARGV[10]  `1`: this is the whole claim, so this script also sends the wakeups. Otherwise the caller does
--   ARGV[11]  `1`: this process is already registered as waiting in this scope; `-`: it is not to be registered
--   ARGV[12]  the state returned by the claim's previous call to this scope, or empty
--   ARGV[13]  the last digits of the scope's lease names
--   ARGV[14]  what to grant: empty: anything; `turns`: steps while the next one is a turn; else this job only
--   ARGV[15..]  the releases, as release_all in include/grant.lua
--
-- Returns {0, turned, runnable, reserved, state, more, wakeups, waits, others wait, now, services, rates}, then the
-- leases:
--   turned    services that became runnable;  runnable: those that are
--   reserved  services for whose workers slots were reserved;  state: for the claim's next call
--   more      1 if the claim could take another step
--   wakeups   services for which to wake this process, if this is the whole claim
--   waits     1 if this process is now registered as waiting;  others wait: 1 if other processes are
--   services  of the leases: name, and when they expire
--   rates     µs until a rate may allow further steps, as text, or empty
--   leases    ten values each: name, job, step, run, index of the service, user, region, charge, weight, band
-- Services are joined by NUL.
--- @const HEADER 12
--- @include scope
--- @include costs
--- @include queues
--- @include rates
--- @include pick
--- @include grant
--- @include holds
--- @include save

local worker_name, room = ARGV[5], tonumber(ARGV[6])
local whole, waits_here = ARGV[10] == '1', ARGV[11] == '1'
local claimed = split(ARGV[7])
local worker = { name = worker_name, services = read_set(claimed), bands = { 0 } }
for digit in string.gmatch(ARGV[8], '%d') do
  worker.bands[#worker.bands + 1] = tonumber(digit)
end
-- The bands of a worker that does not claim from all of them.
local own_bands = #worker.bands < 4 and worker.bands or nil
local bound, unserved = string.match(ARGV[9], '^1([^\1]*)\1?(.*)$')
local regions = bound and split(bound) or false
worker.regions = regions and read_set(regions) or nil
worker.unserved = unserved and unserved ~= '' and read_set(split(unserved)) or nil

if not whole and ARGV[11] == '' then
  -- Register now, before it is known whether the claim leaves unused budget. If it leaves none, the caller removes the
  -- registration.
  call('HSET', WAITERS, PROCESS, pack({ now, now, worker.services, own_bands }))
  waits_here = true
end

if not scope.lost then
  release_all(15)
  end_holds(now)
  if rates then
    rates.advance()
  end
end
for _, service in ipairs(services) do
  refresh(service)
end

local reply, count, taken, granted = { 0, '', '', '', '', 0, '', 0, 0, now, '', '' }, 0, {}, {}
local jobs, lease_names, runs, of_services, number_of = {}, {}, {}, {}, {}

-- The values that the leases of a service share are returned once.
local function first_lease(service)
  local n, expires = #of_services, now + service.ttl
  of_services[n + 1], of_services[n + 2] = service.name, format('%d', expires)
  number_of[service], granted[service.name] = n / 2, true
  expires_by(service, expires)
  touch(service)
  return n / 2
end

local by_worker = pack(worker_name, now)
-- `mask`, `units` and `group` are those that `rates.granted` returned (mask false: none), or nil if it was not called yet.
local function issue(service, job, step, run, user, estimate, charged, band, region, cost, plan, mask, units, group)
  if rates and mask == nil then
    mask, units, group = rates.granted(service, user[ID], region, cost, plan)
  end
  local n, user_id, weight, expires = HEADER + 10 * count, user[ID], user[WEIGHT], now + service.ttl
  count, scope.counter = count + 1, scope.counter + 1
  local name, amount, rest = lease_name(scope.counter, ARGV[13]), pack(charged), ''
  if group then
    rest = packed[mask] .. packed[units] .. FALSE .. packed[cost or false] .. packed[group]
  elseif cost then
    rest = packed[mask or false] .. packed[units or false] .. FALSE .. packed[cost]
  elseif mask then
    rest = packed[mask] .. packed[units]
  end
  local stored = before_text[#job] .. job .. packed[step] .. packed[run] .. before_text[#user_id] .. user_id .. by_worker
    .. packed[region] .. amount .. packed[weight] .. packed[band]
    .. (estimate == charged and amount or pack(estimate)) .. packed[expires] .. rest
  keep_lease(service, name, region, stored)
  jobs[count], lease_names[count], runs[count] = job, name, run
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = name, job, step, run
  reply[n + 5], reply[n + 6], reply[n + 7] = number_of[service] or first_lease(service), user_id, region
  reply[n + 8], reply[n + 9], reply[n + 10] = charged, weight_text(weight), band
end

-- Functions that only some scopes need are created only in those branches: creating a function costs 0.3 µs per call of
-- the script.
local single, passed_over, reserved = by_name[claimed[1]], {}, {}
local only, admits, more = ARGV[14], nil, 0
if only ~= '' then
  admits = function(service, chosen)
    local job = sub(first_queued(service, chosen.lane, chosen.user), 18)
    return job == only or (only == 'turns' and #job == 36 and sub(job, 15, 15) == '8') -- as domain/turns.py
  end
end
if scope.pool_limit then
  --- @include pool
  call('HSET', WORKERS, 'w:' .. worker_name, pack({ claimed, worker.bands, regions, now }))
  local state = { reserved = {}, reserved_for = {}, worker = worker, rivals = rivals_of(worker_name) }
  if ARGV[12] ~= '' then
    local previous = unpack_of(ARGV[12])
    state.reserved, state.reserved_for = previous[1], previous[2]
  end
  local service, chosen = nil, nil
  if room > 0 then
    service, chosen = next_of_pool(state)
  end
  while chosen and (not admits or admits(service, chosen)) do
    local entry, user, estimate, charged = take(service, chosen, taken)
    pool_granted(chosen.band, service, chosen.region, estimate)
    issue(service, entry.job, entry.step, entry.run, user, estimate, charged, chosen.band, chosen.region or false,
      entry.cost, entry.plan)
    chosen = nil
    if count < room then
      service, chosen = next_of_pool(state)
    end
  end
  if next(state.reserved) then
    for _, option in ipairs(options_of(state, worker)) do
      passed_over[option.service.name] = true
    end
    for name in pairs(state.reserved) do
      reserved[#reserved + 1] = name
    end
  end
  call('HSET', WORKERS, 's:' .. worker_name, ARGV[11] == '-' and 0 or math.max(0, room - count))
  reply[5] = pack({ state.reserved, state.reserved_for })
elseif single and (room == 1 or single.regional or admits or rates and rates.may_overtake(single, worker.bands)) then
  -- Step by step, because each grant may change which step is next.
  while count < room do
    local chosen = pick(single, worker.bands, worker.regions, nil, worker.unserved)
    if not chosen or (admits and not admits(single, chosen)) then
      break
    end
    local entry, user, estimate, charged = take(single, chosen, taken)
    issue(single, entry.job, entry.step, entry.run, user, estimate, charged, chosen.band, chosen.region or false,
      entry.cost, entry.plan)
  end
elseif single then
  --- @include many
  take_many(single, worker.bands, room, issue)
end
if rates then
  rates.peek(true) -- a look ahead parks no user
end
if not whole and count >= room then
  local pool_full = scope.pool_limit and pool_free() <= 0
  for _, name in ipairs(claimed) do
    local service = by_name[name]
    if service then
      refresh(service)
      if pick(service, worker.bands, worker.regions, pool_full, worker.unserved) then
        more = 1
      end
    end
  end
end
if rates then
  rates.peek(false)
end
if own_bands and count < room and not worker.regions and not admits then
  scope.found_nothing = { worker.services, own_bands }
end
call_many('HDEL', ENTRIES, taken)
record_granted(jobs, lease_names, runs)

local turned, turned_list, runnable = save(passed_over), {}, {}
for name in pairs(turned) do
  turned_list[#turned_list + 1] = name
end
for _, service in ipairs(services) do
  if service.runnable then
    runnable[#runnable + 1] = service.name
  end
end
reply[12] = rates_due()
reply[2], reply[3] = table.concat(turned_list, '\0'), table.concat(runnable, '\0')
reply[4], reply[6], reply[11] = table.concat(reserved, '\0'), more, table.concat(of_services, '\0')
if not whole then
  reply[8] = waits_here and 1 or 0
  reply[9] = call('HLEN', WAITERS) > call('HEXISTS', WAITERS, PROCESS) and 1 or 0
  return reply
end

-- Update this process's registration before sending wakeups.
local spare = ARGV[11] == '-' and 0 or math.max(0, room - count)
if spare > 0 and not waits_here then
  call('HSET', WAITERS, PROCESS, pack({ now, now, worker.services, own_bands }))
elseif spare == 0 and waits_here then
  call('HDEL', WAITERS, PROCESS)
end
for _, name in ipairs(reserved) do
  granted[name] = true
end
if count > 0 and spare == 0 then
  for name in pairs(worker.services) do
    granted[name] = true
  end
end
for _, name in ipairs(runnable) do
  if granted[name] then
    turned[name] = true
  end
end
reply[7], reply[8] = wake(turned), spare > 0 and 1 or 0
return reply
