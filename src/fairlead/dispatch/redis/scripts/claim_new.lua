-- claim_new: release slots, then grant new steps to a worker, each only if it is the next one of its service now. A step
-- that is not granted leaves no trace. Services in pools, with regions or with FIFO order are left to claims.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]            the version of the caller's rules, or empty
--   ARGV[6]            worker
--   ARGV[7]            the last digits of the scope's lease names
--   ARGV[8]            the number of steps
--   ARGV[9..]          per step: job, and its other values as they are stored (entries in keys.py); then the releases, as
--                      release_all in include/grant.lua
--
-- Returns {0, services for which to wake this process, joined by NUL, rates_due(), now, services in which no step waits
-- and slots are free, joined by NUL}, then four values per step: the name of its lease, when that expires as text, the
-- charge and the band; the name is empty if it is not granted.
--- @include scope
--- @include outdated
if scope.lost then
  return { 0, '', '', now, '' } -- the rebuild loads the state from the database
end
--- @include costs
--- @include queues
--- @include rates
--- @include moves
--- @include pick
--- @include grant
--- @include holds
--- @include save

local last = 8 + 2 * tonumber(ARGV[8])
release_all(last + 1)
end_holds(now)
if rates then
  rates.advance()
end
if scope.pool_limit then
  return { 0, wake(save()), rates_due(), now, '' }
end

local BANDS = { 0, 1, 2, 3 }
local worker_name = ARGV[6]
local reply, jobs, lease_names, runs, taken = { 0, '', '', now, '' }, {}, {}, {}, {}

local function issue(service, entry, user, estimate, charged, band)
  local mask, units, group
  if rates then
    mask, units, group = rates.granted(service, user[ID], false, entry.cost, entry.plan)
  end
  scope.counter = scope.counter + 1
  local name, expires, n = lease_name(scope.counter, ARGV[7]), now + service.ttl, #jobs + 1
  local stored = pack(entry.job, entry.step, entry.run, user[ID], worker_name, now, false, charged, user[WEIGHT],
    band, estimate, expires)
  if mask or entry.cost then -- as in exchange.lua
    stored = stored .. pack(mask or false, units or false, false, entry.cost or false)
    stored = group and stored .. pack(group) or stored
  end
  keep_lease(service, name, false, stored)
  expires_by(service, expires)
  jobs[n], lease_names[n], runs[n] = entry.job, name, entry.run
  return name, format('%d', expires), charged, band
end

local function nothing_waits(service)
  return service.waiting[1] + service.waiting[2] + service.waiting[3] == 0
end

-- Whether the step would be alone in its service's queue and may run now: then it is the next one. Rates and groups are
-- left to `pick`.
local function is_alone(service, user, entry)
  return nothing_waits(service) and not rates and not entry.group and user[LANES] ~= '@' and not user[PARKED]
    and scope.open and not service.paused and free_slots(service) > 0
end

-- Grant a step that is alone: what `join` and `take` do, without writing and reading the queue.
local function grant_alone(service, user, entry)
  local band = where(service, entry.band, entry.rank, false)
  enter(service, user, band)
  local time, estimate = service.vt[band], estimate_of(service, user, entry.cost)
  local charged = charge(estimate, user[WEIGHT])
  move_back(service, user, band, charged)
  user[RUNNING] = user[RUNNING] + 1
  park_or_unpark(service, user)
  if service.vt[band] ~= time then
    drop_overtaken(service, band)
  end
  return issue(service, entry, user, estimate, charged, band)
end

-- Queue a step, and grant it or remove it.
local function claim(service, entry, packed)
  local user, job = user_of(service, entry.user), entry.job
  user[WEIGHT] = entry.weight
  touch(service)
  if is_alone(service, user, entry) then
    return grant_alone(service, user, entry)
  end
  local group, w1, l1, w2, l2 = unpack(entry.group or NONE, 1, 5)
  if group or user[LANES] == '@' then
    scope.groups().place(service, user, group, { w1, l1, w2, l2 })
  end
  join(service, user, job, entry.seq, entry.band, entry.rank, entry.region, entry.cost)
  call('HSET', ENTRIES, job, packed)
  refresh(service)
  local chosen = pick(service, BANDS)
  if chosen and sub(first_queued(service, chosen.lane, chosen.user), 18) == job then
    local estimate, charged
    entry, user, estimate, charged = take(service, chosen, taken)
    return issue(service, entry, user, estimate, charged, chosen.band)
  end
  taken[#taken + 1] = job
  leave(service, entry)
  forget_if_idle(service, user)
  return '', '', 0, 0
end

-- Read the users, and whether the jobs are known, with one command each.
local entries, asked, users_of = {}, {}, {}
for i = 9, last, 2 do
  local entry = read_entry(ARGV[i], ARGV[i + 1])
  local service = (not outdated or outdated[entry.service]) and by_name[entry.service]
  if service and not service.regional and not service.fifo then
    users_of[service] = users_of[service] or {}
    table.insert(users_of[service], entry.user)
  end
  entries[#entries + 1], asked[#asked + 1] = entry, entry.job
end
for service, ids in pairs(users_of) do
  read_users(service, ids)
end
local queued, leased, seen = read_many(ENTRIES, asked), read_many(ONLEASE, asked), {}
for i, entry in ipairs(entries) do
  local n, service = #reply, by_name[entry.service]
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = '', '', 0, 0
  if users_of[service] and not queued[i] and not leased[i] and not seen[entry.job] then
    seen[entry.job] = true
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = claim(service, entry, ARGV[8 + 2 * i])
  end
end
call_many('HDEL', ENTRIES, taken)
record_granted(jobs, lease_names, runs)
reply[2], reply[3] = wake(save()), rates_due()
local idle = {}
for service in pairs(users_of) do
  if nothing_waits(service) and free_slots(service) > 0 then
    idle[#idle + 1] = service.name
  end
end
reply[5] = table.concat(idle, '\0')
return reply
