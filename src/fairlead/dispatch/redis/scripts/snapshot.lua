-- snapshot: return the state of the services, for operators. Holds that are over are ended first.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]            `1`: include the users, and all groups
--   ARGV[6]            the declared groups, joined by NUL
--
-- Returns {0, services for which to wake this process, joined by NUL, services, this server's clock in µs}. Each
-- service is {name, limit, leased, held, paused, {waiting in bands 1 to 3}, leases, holds {job, region, until, key,
-- band}, {virtual times of bands 0 to 3}, mean or -1, fifo, retries first, users {user, band, waiting, running, tag,
-- weight, parked, arrival, group or empty}, regions {name, limit, taken, waiting, retries, failures, until or 0, 1 if it
-- is to be probed, latency or -1}, {waiting, retries} of the unbound lane, rates {kind, name, requests, units, per, used
-- requests, used units, due or -1, end of the rest or 0}, {means above and below of µs per stated cost, of use per stated
-- cost}, groups {path, band, members, running, tag, virtual time, weight, limit or 0, parked, arrival}}.
--- @include scope
--- @include costs
--- @include queues
--- @include regions
--- @include rates
--- @include lanes
--- @include pick
--- @include grant
--- @include holds
--- @include save

local function lease_rows(service)
  local rows, stored = {}, call('HGETALL', service.keys.leases)
  for i = 1, #stored, 2 do
    add_row(rows, read_lease(stored[i], service, stored[i + 1]))
  end
  return rows
end

local function hold_rows(service)
  local rows, holds = {}, call('HGETALL', service.keys.holds)
  for i = 1, #holds, 2 do
    local hold = unpack_of(holds[i + 1])
    rows[#rows + 1] = { hold[1], hold[2], hold[3], holds[i], hold[4] }
  end
  return rows
end

-- One row per user and band in which the user waits or has a virtual time; users with neither appear once.
local function user_rows(service)
  local rows, groups, ids = {}, {}, {}
  for _, id in ipairs(call('HKEYS', service.keys.users)) do
    if byte(id) == 1 then
      groups[#groups + 1] = id
    else
      ids[#ids + 1] = id
    end
  end
  for _, id in ipairs(ids) do
    local user, shown = read_user(service, id), false
    local function show(band, waiting, tag, arrival)
      shown = true
      rows[#rows + 1] = { id, band, waiting, user[RUNNING], tag, format('%.17g', user[WEIGHT]),
        user[PARKED] and 1 or 0, arrival, user[LANES] == '@' and sub(user[GROUP], 2) or '' }
    end
    for band = 0, 3 do
      local waiting = 0
      for at = LANES, #user, 3 do
        waiting = waiting + (band_of(user[at]) == band and user[at + 1] or 0)
      end
      if waiting > 0 or user[TAG + band] then
        show(band, waiting, user[TAG + band] or 0, user[NEW + band] or 0)
      end
    end
    if not shown then
      show(1, 0, 0, 0)
    end
  end
  return rows, groups
end

local declared = split(ARGV[6])
for i = 1, #declared do
  declared[i] = '\1' .. declared[i]
end

-- One row per group and band in which the group has a virtual time.
local function group_rows(service, ids)
  local rows = {}
  read_users(service, ids)
  for _, id in ipairs(ids) do
    local group = service.users[id]
    for band = 0, 3 do
      if group and group[TAG + band] then
        rows[#rows + 1] = { sub(id, 2), band, group[WAITING], group[RUNNING], group[TAG + band],
          group[band < 2 and GROUP_TIMES + band or GROUP_TIMES + 1 + band], format('%.17g', group[WEIGHT]),
          group[LANES + 1], group[PARKED] and 1 or 0, group[NEW + band] or 0 }
      end
    end
  end
  return rows
end

-- Count the waiting steps in the matching lanes. Returns the number without retries that go first, and the number of
-- such retries.
local function waiting_in(service, matches)
  local waiting, retries = 0, 0
  for band = 0, 3 do
    for _, lane in ipairs(lanes_of(service.keys.line, band)) do
      if matches(lane) then
        local count = call('ZLEXCOUNT', service.keys.line, '[' .. lane .. '\0', '(' .. lane .. '\1')
        waiting, retries = waiting + (band > 0 and count or 0), retries + (band == 0 and count or 0)
      end
    end
  end
  return waiting, retries
end

local function region_rows(service)
  local rows = {}
  for i = 1, #service.regions, 2 do
    local name, limit = service.regions[i], service.regions[i + 1]
    local waiting, retries = waiting_in(service, function(lane)
      local reached = allowed_regions(service, lane)
      return reached ~= '' and is_within(name, reached)
    end)
    local health = service.health[name] or { 0, 0, 0, false, false }
    rows[#rows + 1] = { name, limit, service.taken[name], waiting, retries, health[FAILURES], health[UNTIL],
      health[UNTIL] > 0 and now >= health[UNTIL] and 1 or 0, health[LATENCY] or -1 }
  end
  return rows
end

if not scope.lost then
  end_holds(now)
  if rates then
    rates.advance()
  end
end
local wakeups = wake(save())
local rows = {}
for _, service in ipairs(services) do
  local vt, costs, users, groups = service.vt, service.stored_costs and costs_of(service), NONE, declared
  if ARGV[5] == '1' then
    users, groups = user_rows(service)
  end
  rows[#rows + 1] = {
    service.name, service.limit, service.leased, service.held, service.paused and 1 or 0, service.waiting,
    lease_rows(service), hold_rows(service), { vt[0], vt[1], vt[2], vt[3] }, service.mean or -1,
    service.fifo and 1 or 0, service.retries_first and 1 or 0, users,
    service.regional and region_rows(service) or NONE,
    service.regional and { waiting_in(service, function(lane) return allowed_regions(service, lane) == '' end) } or NONE,
    rates and rates.uses(service) or NONE,
    costs and { costs[PER_COST + 1], costs[PER_COST + 2], costs[USED_PER_COST + 1], costs[USED_PER_COST + 2] } or NONE,
    group_rows(service, groups),
  }
end
return { 0, wakeups, rows, now }
