-- snapshot: what operators see. Holds whose time has come end first.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]            `1`: with the users
--
-- Returns {0, services this process is to wake for, services}, each service {name, limit, leased, held, paused,
-- {waiting of bands 1 to 3}, leases, holds {job, region, until, key, band}, {virtual times of bands 0 to 3}, mean or -1,
-- fifo, retries first, users {user, band, waiting, running, tag, weight, parked}}.
--- @include scope
--- @include lines
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

-- One per user and band in which it waits or has a virtual time; a user without either is shown once.
local function user_rows(service)
  local rows, ids = {}, call('HKEYS', service.keys.users)
  for _, id in ipairs(ids) do
    local user, shown = read_user(service, id), false
    local function show(band, waiting, tag)
      shown = true
      rows[#rows + 1] = { id, band, waiting, user[RUNNING], tag, format('%.17g', user[WEIGHT]),
        user[PARKED] and 1 or 0 }
    end
    for band = 0, 3 do
      local waiting = 0
      for at = LANES, #user, 3 do
        waiting = waiting + (band_of(user[at]) == band and user[at + 1] or 0)
      end
      if waiting > 0 or user[TAG + band] then
        show(band, waiting, user[TAG + band] or 0)
      end
    end
    if not shown then
      show(1, 0, 0)
    end
  end
  return rows
end

end_holds(now)
local woken = wake(save())
local rows = {}
for _, service in ipairs(services) do
  local vt = service.vt
  rows[#rows + 1] = {
    service.name, service.limit, service.leased, service.held, service.paused and 1 or 0, service.waiting,
    lease_rows(service), hold_rows(service), { vt[0], vt[1], vt[2], vt[3] }, service.mean or -1,
    service.fifo and 1 or 0, service.retries_first and 1 or 0, ARGV[5] == '1' and user_rows(service) or {},
  }
end
return { 0, woken, rows }
