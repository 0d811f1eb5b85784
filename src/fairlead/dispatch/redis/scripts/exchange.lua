-- exchange: give back slots and take the next steps, as one operation.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]   worker
--   ARGV[6]   room: how many steps to take from this scope
--   ARGV[7]   the claim's services of this scope, joined by NUL
--   ARGV[8]   the claim's bands, as digits in order
--   ARGV[9]   `1` and the claim's regions joined by NUL; empty: any
--   ARGV[10]  `1`: this is the whole claim, so whom to wake is decided here. Else the caller decides, when it knows
--   ARGV[11]  `1`: this process is among the scope's waiters already; `-`: it has no room, so it is not to be
--   ARGV[12]  the claim's state from its last call to this scope, or empty
--   ARGV[13]  the name's last digits: which scope a lease is of
--   ARGV[14..]  per release: lease, service, `1` for a refund
--
-- Returns {0, leases, turned, runnable, left to others, state, more, wakes, waits, others wait}:
--   leases    thirteen values each, as add_row in include/grant.lua
--   turned, runnable, left to others   services: made runnable by this, runnable now, whose workers slots were left for
--   more      1 if another step could be taken by this claim
--   wakes     services this process is to wake for, if the whole claim
--   waits     1 if this process is now among the scope's waiters;  others wait: 1 if other processes are
--- @include scope
--- @include lines
--- @include grant
--- @include save
--- @include turns
--- @include many

local worker_name, room = ARGV[5], tonumber(ARGV[6])
local whole, waits_here = ARGV[10] == '1', ARGV[11] == '1'
local claimed = split(ARGV[7])
local worker = { name = worker_name, services = read_set(claimed), bands = { 0 } }
for digit in string.gmatch(ARGV[8], '%d') do
  worker.bands[#worker.bands + 1] = tonumber(digit)
end
local regions = ARGV[9] ~= '' and split(sub(ARGV[9], 2)) or false
worker.regions = regions and read_set(regions) or nil

if not whole and ARGV[11] == '' then
  -- Whether the claim will leave it with room is not known yet: the caller takes it off the list again if not.
  call('HSET', WAITERS, PROCESS, pack({ now, now, worker.services }))
  waits_here = true
end

local releases = {}
for i = 14, #ARGV, 3 do
  releases[#releases + 1] = { ARGV[i], ARGV[i + 1], ARGV[i + 2] == '1' }
end
release_all(releases)
end_holds(now)

local turn = { left = {}, left_to = {}, worker = worker, rivals = {} }
if ARGV[12] ~= '' then
  local state = unpack_of(ARGV[12])
  turn.left, turn.left_to = state[1], state[2]
end
if scope.pool_limit then
  call('HSET', WORKERS, 'w:' .. worker_name, pack({ claimed, worker.bands, regions, now }))
  turn.rivals = rivals_of(worker_name)
end

local rows, count, taken, changes, granted = {}, 0, {}, {}, {}
local function issue(service, entry, user, estimate, charged, band, region)
  scope.counter = scope.counter + 1
  local lease = {
    name = format('%d:%d', scope.epoch, scope.counter) .. ARGV[13], job = entry.job, step = entry.step,
    run = entry.run, service = service.name, user = user.id, worker = worker_name, granted = now,
    expires = now + service.rules.ttl, region = region or false, charged = charged, weight = user.weight,
    band = band, estimate = estimate,
  }
  keep_lease(service, lease)
  changes[#changes + 1] = { lease.job, lease.name, lease.run }
  add_row(rows, lease, lease.expires)
  count = count + 1
  granted[service.name] = true
  touch(service)
end

-- One step after the other: for pools and regions, where each grant may change whose turn is next.
local function grant_in_turn()
  while count < room do
    local service, chosen = by_name[claimed[1]], nil
    if scope.pool_limit then
      service, chosen = next_of_pool(turn)
    else
      chosen = service and pick(service, worker.bands, worker.regions)
    end
    if not chosen then
      return
    end
    local entry, user, estimate, charged = take(service, chosen, taken)
    if scope.pool_limit then
      pool_charge(chosen.band, service.name, estimate)
    end
    issue(service, entry, user, estimate, charged, chosen.band, chosen.region)
  end
end

for _, service in ipairs(services) do
  refresh(service)
end
local single = by_name[claimed[1]]
if single and not scope.pool_limit and not single.regional then
  take_many(single, worker.bands, room, taken, issue)
else
  grant_in_turn()
end
local more = 0
if not whole and count >= room and (not scope.pool_limit or pool_free() > 0) then
  for _, name in ipairs(claimed) do
    local service = by_name[name]
    if service then
      refresh(service)
      if pick(service, worker.bands, worker.regions) then
        more = 1
      end
    end
  end
end
call_many('HDEL', ENTRIES, taken)
note_leases(changes)

local spare = math.max(0, room - count)
local passing, left = {}, {}
if next(turn.left) then
  for _, option in ipairs(options_of(turn, worker)) do
    passing[option.service.name] = true
  end
  for name in pairs(turn.left) do
    left[#left + 1] = name
  end
end
if scope.pool_limit then
  call('HSET', WORKERS, 's:' .. worker_name, spare)
end
local turned = save(passing)
local turned_list, runnable = {}, {}
for name in pairs(turned) do
  turned_list[#turned_list + 1] = name
end
for _, service in ipairs(services) do
  if service.runnable then
    runnable[#runnable + 1] = service.name
  end
end

local state = scope.pool_limit and pack({ turn.left, turn.left_to }) or ''
if not whole then
  local others = call('HLEN', WAITERS) > call('HEXISTS', WAITERS, PROCESS) and 1 or 0
  return { 0, rows, turned_list, runnable, left, state, more, {}, waits_here and 1 or 0, others }
end

-- Before anyone is woken: who is full does not wait, and who has room does.
if spare > 0 and not waits_here then
  call('HSET', WAITERS, PROCESS, pack({ now, now, worker.services }))
elseif spare == 0 and waits_here then
  call('HDEL', WAITERS, PROCESS)
end
for _, name in ipairs(left) do
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
return { 0, rows, turned_list, runnable, left, state, more, wake(turned), spare > 0 and 1 or 0, 0 }
