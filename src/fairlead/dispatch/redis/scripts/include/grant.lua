-- Which step a free slot goes to, and the ends of leases. As memory/service.py.

local function free_slots(service)
  return service.limit - service.leased - service.held
end

-- Who is next in a lane: standing and user.
local function head(service, lane)
  local first = call('ZRANGEBYLEX', service.keys.heads, '[' .. lane .. '\0', '(' .. lane .. '\1', 'LIMIT', 0, 1)[1]
  if first then
    return sub(first, #lane + 2, #lane + 17), sub(first, #lane + 18)
  end
end

local function pick_unbound(service, bands)
  -- The heads of all bands are in one set, so the first of them is the pick, unless its band is not asked for.
  local first = call('ZRANGEBYLEX', service.keys.heads, '-', '+', 'LIMIT', 0, 1)[1]
  if not first then
    return nil
  end
  local lowest = tonumber(sub(first, 1, 1))
  for _, band in ipairs(bands) do
    if band == lowest then
      return { band = band, lane = band .. '-', user = sub(first, 20) }
    elseif band > lowest then
      local _, user = head(service, band .. '-')
      if user then
        return { band = band, lane = band .. '-', user = user }
      end
    end
  end
end

local function earlier(service, a, b)
  if a.standing ~= b.standing then
    return before(a.standing, b.standing)
  end
  if a.user ~= b.user then
    return before(a.user, b.user)
  end
  -- One user may be the head of two lanes: then its own order decides.
  local first, other = first_in_line(service, a.lane, a.user), first_in_line(service, b.lane, b.user)
  return before(first, other)
end

-- The unbound lane competes with the lanes of all regions that have a slot; global retries come before all.
local function pick_of_regions(service, bands, regions)
  local free, roomiest, most = {}, nil, 0
  for _, region in ipairs(service.rules.regions) do
    local name = region[1]
    local slots = region[2] - service.taken[name]
    if slots > 0 and (not regions or regions[name]) then
      free[#free + 1] = name
      if slots > most then
        roomiest, most = name, slots
      end
    end
  end
  if not roomiest then
    return nil
  end
  for _, band in ipairs(bands) do
    local best
    local standing, user = head(service, band .. '-')
    if user then
      best = { band = band, lane = band .. '-', standing = standing, user = user, region = roomiest }
    end
    if not (best and band == 0) then
      for _, name in ipairs(free) do
        local lane = band .. '=' .. name
        standing, user = head(service, lane)
        if user then
          local rival = { band = band, lane = lane, standing = standing, user = user, region = name }
          if not best or earlier(service, rival, best) then
            best = rival
          end
        end
      end
    end
    if best then
      return best
    end
  end
end

-- Whose step the next free slot goes to, if there is both. `bands` in order; `regions` a set, or nil for all.
local FIFO_BANDS = { 0, 1 }
local function pick(service, bands, regions)
  if not scope.open or service.paused or free_slots(service) <= 0 then
    return nil
  end
  if service.fifo then
    bands = FIFO_BANDS
  end
  if service.regional then
    return pick_of_regions(service, bands, regions)
  end
  return pick_unbound(service, bands)
end

-- Idle users whose tag the virtual time has reached since this was last asked.
local function drop_overtaken(service, band)
  local past = call('ZRANGEBYLEX', service.keys.idle, '[' .. band, '(' .. band .. sortable(service.vt[band] + 1))
  for _, member in ipairs(past) do
    call('ZREM', service.keys.idle, member)
    forget_if_idle(service, sub(member, 18))
  end
end

-- The step leaves the line and its user is charged: the step, its user, the estimate and the charge.
local function take(service, chosen, taken)
  local user = user_of(service, chosen.user)
  local suffix, member = first_in_line(service, chosen.lane, chosen.user)
  local job = sub(suffix, 18)
  local entry = read_entry(job, call('HGET', ENTRIES, job))
  call('ZREM', service.keys.line, member)
  taken[#taken + 1] = job
  local estimate, charged = estimate_of(service, user, entry.cost), 0
  local band = chosen.band
  if not service.fifo then
    local tag = user.tags[band]
    service.vt[band] = math.max(service.vt[band], tag)
    charged = charge(estimate, user.weight)
    user.tags[band] = tag + charged
  end
  count_out(service, entry, user, chosen.lane)
  user.running = user.running + 1
  park_or_unpark(service, user)
  refresh_user(service, user)
  if not service.fifo then
    drop_overtaken(service, band)
  end
  return entry, user, estimate, charged
end

local function occupy(service, slot, region)
  if region then
    service.new_slots[#service.new_slots + 1] = 0
    service.new_slots[#service.new_slots + 1] = region .. '\0' .. slot
    if service.taken[region] then
      service.taken[region] = service.taken[region] + 1
    end
  end
end

local function vacate(service, slot, region)
  if region then
    call('ZREM', service.keys.slots, region .. '\0' .. slot)
    if service.taken[region] then
      service.taken[region] = service.taken[region] - 1
    end
  end
end

local function keep_lease(service, lease)
  service.leased = service.leased + 1
  occupy(service, lease.name, lease.region)
  local leases, expiries = service.new_leases, service.new_expiries
  leases[#leases + 1] = lease.name
  leases[#leases + 1] = pack({ lease.job, lease.step, lease.run, lease.user, lease.worker, lease.granted, lease.region,
    lease.charged, lease.weight, lease.band, lease.estimate })
  expiries[#expiries + 1] = format('%d', lease.expires)
  expiries[#expiries + 1] = lease.name
end

local function read_lease(name, service, stored)
  local l = unpack_of(stored)
  return { name = name, service = service.name, job = l[1], step = l[2], run = l[3], user = l[4], worker = l[5],
    granted = l[6], region = l[7], charged = l[8], weight = l[9], band = l[10], estimate = l[11] }
end

-- A lease as the dispatcher reads it: thirteen values, at the end of a list. Not a list of its own: the server would
-- write each of those to the socket by itself.
local function add_row(rows, lease, expires)
  local n = #rows
  rows[n + 1], rows[n + 2], rows[n + 3], rows[n + 4] = lease.name, lease.job, lease.step, lease.run
  rows[n + 5], rows[n + 6], rows[n + 7], rows[n + 8] = lease.service, lease.user, lease.worker, lease.granted
  rows[n + 9], rows[n + 10], rows[n + 11] = expires, lease.region or false, lease.charged
  rows[n + 12] = lease.weight % 1 == 0 and lease.weight or format('%.17g', lease.weight)
  rows[n + 13] = lease.band
end

-- Which leases a job has: `name run`, one each but for a job that came back before the lease it lost was released.
-- `changes` are {job, name, run}, run nil for a lease that ended.
local function note_leases(changes)
  local jobs, known, written, gone = {}, {}, {}, {}
  for i, change in ipairs(changes) do
    jobs[i] = change[1]
  end
  for i, stored in ipairs(read_many(ONLEASE, jobs)) do
    known[jobs[i]] = stored or ''
  end
  for _, change in ipairs(changes) do
    local job, name, run = change[1], change[2], change[3]
    if run then
      known[job] = known[job] .. name .. ' ' .. run .. ' '
    else
      local others = ''
      for other, its_run in string.gmatch(known[job], '(%S+) (%S+) ') do
        if other ~= name then
          others = others .. other .. ' ' .. its_run .. ' '
        end
      end
      known[job] = others
    end
  end
  for job, text in pairs(known) do
    if text ~= '' then
      written[#written + 1] = job
      written[#written + 1] = text
    else
      gone[#gone + 1] = job
    end
  end
  call_many('HDEL', ONLEASE, gone)
  call_many('HSET', ONLEASE, written, 2)
end

local function pool_charge(band, name, estimate)
  local times, tags = scope.pool[1], scope.pool[2][band + 1]
  local start = math.max(times[band + 1], tags[name] or 0)
  times[band + 1] = start
  tags[name] = start + charge(estimate, 1)
end

-- End a lease: its charge is settled to the slot time really used, or goes back whole.
local function give_back(service, lease, refund)
  local user = user_of(service, lease.user)
  service.leased = service.leased - 1
  vacate(service, lease.name, lease.region)
  user.running = user.running - 1
  local used = 0
  local real = not refund and math.max(0, now - lease.granted)
  if real then
    used = charge(real, lease.weight)
    user.mean = smoothed(user.mean, real)
    service.mean = smoothed(service.mean, real)
  end
  if not service.fifo and used ~= lease.charged then
    user.tags[lease.band] = (user.tags[lease.band] or 0) + used - lease.charged
    user.stale = true
  end
  if scope.pool_limit then
    local tags = scope.pool[2][lease.band + 1]
    tags[service.name] = (tags[service.name] or 0) + (real and charge(real, 1) or 0) - charge(lease.estimate, 1)
  end
  park_or_unpark(service, user)
  forget_if_idle(service, lease.user)
  touch(service)
end

-- Give back leases: {name, service, refund} each. Those that are not there change nothing.
local function release_all(releases)
  local wanted, ended = {}, {}
  for _, release in ipairs(releases) do
    local service = by_name[release[2]]
    if service then
      wanted[service] = wanted[service] or {}
      table.insert(wanted[service], release)
    end
  end
  for _, service in ipairs(services) do
    local list, lease_names = wanted[service] or {}, {}
    for i, release in ipairs(list) do
      lease_names[i] = release[1]
    end
    local found, users, seen, gone = {}, {}, {}, {}
    for i, stored in ipairs(read_many(service.keys.leases, lease_names)) do
      local release = list[i]
      if stored and not seen[release[1]] then
        local lease = read_lease(release[1], service, stored)
        seen[lease.name] = true
        lease.refund = release[3]
        found[#found + 1], users[#users + 1], gone[#gone + 1] = lease, lease.user, lease.name
        ended[#ended + 1] = { lease.job, lease.name }
      end
    end
    read_users(service, users)
    for _, lease in ipairs(found) do
      give_back(service, lease, lease.refund)
    end
    call_many('HDEL', service.keys.leases, gone)
    call_many('ZREM', service.keys.expiry, gone)
  end
  note_leases(ended)
end

-- Holds over by this time; how many.
local function end_holds(time)
  local count = 0
  for _, service in ipairs(services) do
    for _, key in ipairs(call('ZRANGEBYSCORE', service.keys.ends, '-inf', format('%d', time))) do
      local hold = unpack_of(call('HGET', service.keys.holds, key))
      call('HDEL', service.keys.holds, key)
      call('ZREM', service.keys.ends, key)
      vacate(service, key, hold[2])
      service.held = service.held - 1
      touch(service)
      count = count + 1
    end
  end
  return count
end

-- Keep a slot taken: key, job, region, until. One already known, or over, is not counted.
local function keep_hold(service, key, job, region, over)
  if over > now and call('HSETNX', service.keys.holds, key, pack({ job, region, over })) == 1 then
    call('ZADD', service.keys.ends, format('%d', over), key)
    service.held = service.held + 1
    occupy(service, key, region)
    touch(service)
  end
end
