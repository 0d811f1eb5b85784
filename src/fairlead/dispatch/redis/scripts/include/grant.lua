-- Leases: how they begin and end. As memory/service.py.

-- Idle users whose tag the virtual time has reached since this was last asked.
local function drop_overtaken(service, band)
  local past = call('ZRANGEBYLEX', service.keys.idle, '[' .. band, '(' .. band .. sortable(service.vt[band] + 1))
  for _, member in ipairs(past) do
    call('ZREM', service.keys.idle, member)
    forget_if_idle(service, read_user(service, sub(member, 18)))
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
    charged = charge(estimate, user[WEIGHT])
    move_back(service, user, band, charged)
  end
  count_out(service, entry, user, chosen.lane)
  user[RUNNING] = user[RUNNING] + 1
  park_or_unpark(service, user)
  refresh_user(service, user)
  if not service.fifo then
    drop_overtaken(service, band)
  end
  return entry, user, estimate, charged
end

local function occupy(service, slot, region)
  service.new_slots[#service.new_slots + 1] = '0'
  service.new_slots[#service.new_slots + 1] = region .. '\0' .. slot
  if service.taken[region] then
    service.taken[region] = service.taken[region] + 1
  end
end

local function vacate(service, slot, region)
  call('ZREM', service.keys.slots, region .. '\0' .. slot)
  if service.taken[region] then
    service.taken[region] = service.taken[region] - 1
  end
end

-- `stored` are its values, packed in this order: job, step, run, user, worker, granted, region or false, charge,
-- weight, band, estimate, expires.
local function keep_lease(service, name, region, stored)
  service.leased = service.leased + 1
  if region then
    occupy(service, name, region)
    local health = service.health[region]
    if health and health[UNTIL] > 0 then
      health[PROBE] = name -- the first call to a region that has rested
    end
  end
  local leases, n = service.new_leases, #service.new_leases
  leases[n + 1], leases[n + 2] = name, stored
end

local function read_lease(name, service, stored)
  local job, step, run, user, worker, granted, region, charged, weight, band, estimate, expires = unpack_of(stored)
  return { name = name, service = service.name, job = job, step = step, run = run, user = user, worker = worker,
    granted = granted, region = region, charged = charged, weight = weight, band = band, estimate = estimate,
    expires = expires }
end

local function weight_text(weight)
  return weight % 1 == 0 and weight or format('%.17g', weight)
end

-- A lease as the dispatcher reads it: thirteen values, at the end of a list. Not a list of its own: the server would
-- write each of those to the socket by itself.
local function add_row(rows, lease)
  local n = #rows
  rows[n + 1], rows[n + 2], rows[n + 3], rows[n + 4] = lease.name, lease.job, lease.step, lease.run
  rows[n + 5], rows[n + 6], rows[n + 7], rows[n + 8] = lease.service, lease.user, lease.worker, lease.granted
  rows[n + 9], rows[n + 10], rows[n + 11] = lease.expires, lease.region, lease.charged
  rows[n + 12], rows[n + 13] = weight_text(lease.weight), lease.band
end

-- Which leases a job has: `name, run` of each, packed one behind the other. It is one lease but for a job that came
-- back before the lease it lost was released. Each job is to be named once.
local function note_granted(jobs, lease_names, runs)
  local known, written = read_many(ONLEASE, jobs), {}
  for i = 1, #jobs do
    local noted = pack(lease_names[i], runs[i])
    written[2 * i - 1], written[2 * i] = jobs[i], known[i] and known[i] .. noted or noted
  end
  write_many(ONLEASE, written, true)
end

-- One of several leases of a job has ended.
local function note_one_of_many(job, name)
  local stored = call('HGET', ONLEASE, job)
  local noted, others = { unpack_of(stored or '') }, {}
  for i = 1, #noted, 2 do
    if noted[i] ~= name then
      others[#others + 1], others[#others + 2] = noted[i], noted[i + 1]
    end
  end
  if #others > 0 then
    call('HSET', ONLEASE, job, pack(unpack(others)))
  else
    call('HDEL', ONLEASE, job)
  end
end

local function note_ended(jobs, lease_names)
  local known, gone = read_many(ONLEASE, jobs), {}
  for i = 1, #jobs do
    local name, _, another = unpack_of(known[i] or '')
    if name == lease_names[i] and not another then
      gone[#gone + 1] = jobs[i]
    elseif name then
      note_one_of_many(jobs[i], lease_names[i])
    end
  end
  call_many('HDEL', ONLEASE, gone)
end

local function pool_granted(band, service, region, estimate)
  local name, beside = service.name, scope.pool[4]
  if not in_pool(service, region) then
    if beside[name] then
      scope.pool[4] = {}
    end
    scope.pool[4][name] = true
    return
  end
  scope.pool[4] = {}
  local times, tags = scope.pool[1], scope.pool[2][band + 1]
  local start = math.max(times[band + 1], tags[name] or 0)
  times[band + 1] = start
  tags[name] = start + charge(estimate, 1)
end

-- End a lease, of which these values are stored: its charge is settled to the slot time really used, or goes back
-- whole. Returns its job. How its call ended is marked `0` nobody can tell, `1` nothing ran, `2` it succeeded or `3` it
-- failed.
local function give_back(service, name, mark, job, _, _, user_id, _, granted, region, charged, weight, band, estimate)
  local user = user_of(service, user_id)
  service.leased = service.leased - 1
  if region then
    vacate(service, name, region)
    region_ended(service, region, name, mark, now > granted and now - granted or 0)
  end
  user[RUNNING] = user[RUNNING] - 1
  local used, real = 0, nil
  if mark ~= '1' then
    real = now > granted and now - granted or 0
    used = charge(real, weight)
    user[MEAN] = smoothed(user[MEAN], real)
    average(service, real)
  end
  if not service.fifo and used ~= charged then
    user[TAG + band] = (user[TAG + band] or 0) + used - charged
    mark_stale(service, user)
    if used > charged then
      user[NEW + band] = false -- who has a debt is not new
    end
  end
  if scope.pool_limit and in_pool(service, region) then
    local tags = scope.pool[2][band + 1]
    tags[service.name] = (tags[service.name] or 0) + (real and charge(real, 1) or 0) - charge(estimate, 1)
  end
  park_or_unpark(service, user)
  forget_if_idle(service, user)
  return job
end

-- Give back leases of a service. Those that are not there change nothing.
local function release(service, mark, lease_names)
  local seen, jobs, gone, count = {}, {}, {}, 0
  local found = read_many(service.keys.leases, lease_names)
  for i, name in ipairs(lease_names) do
    if found[i] and not seen[name] then
      seen[name] = true
      count = count + 1
      jobs[count], gone[count] = give_back(service, name, mark, unpack_of(found[i])), name
    end
  end
  if count > 0 then
    touch(service)
    call_many('HDEL', service.keys.leases, gone)
    note_ended(jobs, gone)
  end
end

-- Releases are at the end of ARGV, by threes: service, how the calls ended, names of leases joined by NUL.
local function release_all(first)
  for i = first, #ARGV, 3 do
    local service = by_name[ARGV[i]]
    if service then
      release(service, ARGV[i + 1], split(ARGV[i + 2]))
    end
  end
end
