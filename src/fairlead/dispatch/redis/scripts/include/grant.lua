-- Granting and releasing leases. Same behaviour as dispatch/memory/service.py.

-- Forget the idle users whose tag the virtual time has reached; with `group`, those of this group.
local function drop_overtaken(service, band, group)
  local prefix, time = '', service.vt[band]
  if group then
    prefix, time = 'g' .. sub(group[ID], 2) .. '\0', group[band < 2 and GROUP_TIMES + band or GROUP_TIMES + 1 + band]
  end
  local from = prefix .. band
  local past = call('ZRANGEBYLEX', service.keys.idle, '[' .. from, '(' .. from .. sortable(time + 1))
  for _, member in ipairs(past) do
    call('ZREM', service.keys.idle, member)
    forget_if_idle(service, read_user(service, sub(member, #prefix + 18)))
  end
end

-- Remove the picked step from its queue and charge its user; returns the entry, the user, the estimate and the charge.
local function take(service, chosen, taken)
  local user = user_of(service, chosen.user)
  local suffix, member = first_queued(service, chosen.lane, chosen.user)
  local job = sub(suffix, 18)
  local entry = read_entry(job, call('HGET', ENTRIES, job))
  call('ZREM', service.keys.line, member)
  taken[#taken + 1] = job
  local estimate, charged = estimate_of(service, user, entry.cost, chosen.region), 0
  local band = chosen.band
  if not service.fifo then
    charged = charge(estimate, user[WEIGHT])
    move_back(service, user, band, charged)
  end
  local grouped = user[LANES] == '@' and not service.fifo
  if grouped then
    scope.groups().charge(service, user, band, estimate)
  end
  count_out(service, entry, user, chosen.lane)
  user[RUNNING] = user[RUNNING] + 1
  park_or_unpark(service, user)
  if grouped then
    scope.groups().count_running(service, user, 1)
    refresh(service)
    scope.groups().each(service, user, function(group) drop_overtaken(service, band, group) end)
  else
    refresh_user(service, user)
  end
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

-- The name of the lease with this number. Successive ones differ in their last digit, so the others are formatted once.
local name_prefix, prefix_of = nil, -1
local function lease_name(number, last)
  local digit = number % 10
  local numbers = number - digit
  if numbers ~= prefix_of then
    name_prefix = format(number < 10 and '%d:' or '%d:%d', scope.epoch or 0, numbers / 10)
    prefix_of = numbers
  end
  return name_prefix .. char(48 + digit) .. last
end

-- `stored` are the packed values: job, step, run, user, worker, granted, region or false, charge, weight, band,
-- estimate, expires; and if rates count the call or it stated its cost: the mask of its windows or false, its units, when
-- it was sent or false, and its cost or false; and if rates of groups count it, the path of the innermost of these. The
-- last ones may be absent if they are false.
local function keep_lease(service, name, region, stored)
  service.leased = service.leased + 1
  if region then
    occupy(service, name, region)
    local health = service.health[region]
    if health and health[UNTIL] > 0 then
      health[PROBE] = name -- the first call after a rest is the probe
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

-- Append the thirteen values of a lease to a flat list. The server would write a nested list to the socket separately.
local function add_row(rows, lease)
  local n = #rows
  rows[n + 1], rows[n + 2], rows[n + 3], rows[n + 4] = lease.name, lease.job, lease.step, lease.run
  rows[n + 5], rows[n + 6], rows[n + 7], rows[n + 8] = lease.service, lease.user, lease.worker, lease.granted
  rows[n + 9], rows[n + 10], rows[n + 11] = lease.expires, lease.region, lease.charged
  rows[n + 12], rows[n + 13] = weight_text(lease.weight), lease.band
end

-- Record the leases of jobs: `name, run` of each, packed one after the other. A job has more than one only if it was
-- requeued before its lost lease was released. Each job may appear once.
local function record_granted(jobs, lease_names, runs)
  local known, written = read_many(ONLEASE, jobs), {}
  for i = 1, #jobs do
    local recorded = before_text[#lease_names[i]] .. lease_names[i] .. packed[runs[i]]
    written[2 * i - 1], written[2 * i] = jobs[i], known[i] and known[i] .. recorded or recorded
  end
  write_many(ONLEASE, written, true)
end

-- Remove one of several leases of a job.
local function remove_one_lease(job, name)
  local stored = call('HGET', ONLEASE, job)
  local recorded, others = { unpack_of(stored or '') }, {}
  for i = 1, #recorded, 2 do
    if recorded[i] ~= name then
      others[#others + 1], others[#others + 2] = recorded[i], recorded[i + 1]
    end
  end
  if #others > 0 then
    call('HSET', ONLEASE, job, pack(unpack(others)))
  else
    call('HDEL', ONLEASE, job)
  end
end

local function record_ended(jobs, lease_names)
  local known, gone, count = read_many(ONLEASE, jobs), {}, 0
  for i = 1, #jobs do
    local name, _, another = unpack_of(known[i] or '')
    if name == lease_names[i] and not another then
      count = count + 1
      gone[count] = jobs[i]
    elseif name then
      remove_one_lease(jobs[i], lease_names[i])
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

local released_in_groups, settled

-- End a lease with these stored values: its charge is settled to what it actually used, or refunded. Returns its job.
-- `mark` is the outcome of its call: `0` unknown, `1` nothing ran, `2` succeeded, `3` failed. `reported` are the units
-- that the call used, in millionths, or nil; `sent` the µs, at most, from its grant until it was sent, or nil.
local function release_one(
  service, name, mark, reported, sent, job, _, _, user_id, _, granted, region, charged, weight, band, estimate, _,
  mask, units, sent_at, cost, group
)
  local user, unparked = service.users[user_id] or user_of(service, user_id), false
  user[CHANGED] = true
  if rates then
    unparked = rates.ended(service, user, region, mark == '1', reported, mask, units, sent_at, granted, sent, group)
  end
  service.leased = service.leased - 1
  if region then
    vacate(service, name, region)
    of_regions().ended(service, region, name, mark, now > granted and now - granted or 0)
  end
  user[RUNNING] = user[RUNNING] - 1
  local used, real, base = 0, nil, nil
  if mark ~= '1' then
    real = now > granted and now - granted or 0
    if cost or reported then
      settled = settled or of_costs().settled
      base = settled(service, real, cost, reported, region)
    else
      base = real
    end
    used = charge(base, weight)
    user[MEAN] = smoothed(user[MEAN], real)
    average(service, real)
  end
  if not service.fifo and used ~= charged then
    user[TAG + band] = (user[TAG + band] or 0) + used - charged
    if not user[STALE] then
      mark_stale(service, user)
    end
    if used > charged then
      user[NEW + band] = false -- a user with debt is not new
    end
  end
  if scope.pool_limit and in_pool(service, region) then
    local tags = scope.pool[2][band + 1]
    tags[service.name] = (tags[service.name] or 0) + (real and charge(real, 1) or 0) - charge(estimate, 1)
  end
  if user[LANES] == '@' then
    released_in_groups = released_in_groups or scope.groups().released
    released_in_groups(service, user, band, charged > 0 and estimate, base, weight, used - charged)
  elseif service.user_limit or user[PARKED] then
    park_or_unpark(service, user)
  end
  if unparked then
    rates.groups_ended(service, group)
  end
  if user[WAITING] == 0 and user[RUNNING] == 0 then
    forget_if_idle(service, user)
  end
  return job
end

-- Release leases of a service. Unknown names are ignored.
local function release(service, mark, reported, lease_names, sent)
  local seen, jobs, gone, count = {}, {}, {}, 0
  local stored = read_many(service.keys.leases, lease_names)
  local ids = NONE
  if #lease_names > 1 then
    ids = {}
    for i = 1, #lease_names do
      if stored[i] then
        local _, _, _, _, user_id = cmsgpack.unpack_limit(stored[i], 4, 0)
        count = count + 1
        ids[count] = user_id
      end
    end
  end
  while ids[1] do
    -- Read the users, then their groups, and the windows of both, with one command each.
    read_users(service, ids)
    if rates and rates.read_members and (rates.by_user or byte(ids[1]) == 1) then
      rates.read_members(service, ids)
    end
    local groups, users, known = {}, service.users, {}
    for i = 1, service.fifo and 0 or #ids do
      local user = users[ids[i]]
      local group = user and user[LANES] == '@' and user[GROUP]
      if group and not known[group] then
        known[group] = true
        if users[group] == nil then
          groups[#groups + 1] = group
        end
      end
    end
    ids = groups
  end
  count = 0
  for i, name in ipairs(lease_names) do
    if stored[i] and not seen[name] then
      seen[name] = true
      count = count + 1
      jobs[count], gone[count] = release_one(service, name, mark, reported, sent[i], unpack_of(stored[i])), name
    end
  end
  if count > 0 then
    touch(service)
    if rates then
      rates.count_ended()
    end
    call_many('HDEL', service.keys.leases, gone)
    record_ended(jobs, gone)
  end
end

-- Releases are the last arguments, three each: service, outcome as a digit and the units used, and the names of leases,
-- joined by NUL. If it is known when its call was sent, a byte 1 and µs follow the name of a lease.
local function release_all(first)
  for i = first, #ARGV, 3 do
    local service = by_name[ARGV[i]]
    if service then
      local lease_names, sent = split(ARGV[i + 2]), {}
      for at, name in ipairs(string.find(ARGV[i + 2], '\1', 1, true) and lease_names or NONE) do
        local only, after = string.match(name, '^([^\1]*)\1(%d+)$')
        if only then
          lease_names[at], sent[at] = only, tonumber(after)
        end
      end
      release(service, sub(ARGV[i + 1], 1, 1), tonumber(sub(ARGV[i + 1], 2)), lease_names, sent)
    end
  end
end
