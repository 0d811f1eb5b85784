-- positions: compute queue positions, assuming that nothing more arrives and every step takes as long as estimated.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]            regions that no worker claims for, as `service:region`, joined by NUL
--   ARGV[6..]          jobs
--
-- Returns {0}, then twenty-three values per job:
--   job, position, work ahead in µs, slots, mean duration in µs, free slots, service, band
--   1 for the first step of a newcomer
--   of the steps ahead: retries that go first, steps of higher bands, steps of the same user
--   of the work ahead: the remaining work of running steps in µs
--   the user's limit (-1: none), how much of it is unused, the remaining work of the user's running steps in µs
--   µs until the first of the allowed regions accepts calls again
--   µs until the steps ahead have had a slot and another slot is free; -1 if no running call stated its cost
--   µs until the rates of the service, its pool and the first of the allowed regions allow the step; and its user's rate
--   the groups that the user is in, from the outermost, as in include/group_positions.lua; empty: none
--   the estimate of the step itself in µs, and what it is based on: 0 its cost, 1 the mean of its user, 2 the mean of the
--   service, 3 the declared duration
-- Jobs that are not queued here are absent; during a rebuild all are.
--
-- FIFO lanes are counted exactly. In fair lanes the n-th waiting step of a user starts at tag + n * charge, so the
-- steps ahead of a given one can be counted per user, in one pass over the users for all requested steps. The first
-- step of a newcomer starts at the newcomer's sort key instead, before all virtual times. If steps state costs, the
-- charge is the mean of the user's waiting steps. Same behaviour as dispatch/memory/positions.py.
--- @include scope
--- @include costs
--- @include queues
--- @include regions
--- @include rates
--- @include lanes
--- @include moves
--- @include slot_waits

local unserved = read_set(split(ARGV[5]))

local function is_unbound(lane)
  return sub(lane, 2, 2) == '-'
end

-- The lanes that a step of this lane waits behind: for an unbound step all lanes, for a bound step those that share a
-- region with its own and those that may run anywhere.
local function lanes_ahead(service, key, band, lane)
  local lanes, reached = lanes_of(key, band), allowed_regions(service, lane, unserved)
  if reached == '' then
    return lanes
  end
  local ahead, own = {}, {}
  for region in string.gmatch(reached, '[^+]+') do
    own[#own + 1] = region
  end
  for _, other in ipairs(lanes) do
    if best_region(service, other, own, unserved) then
      ahead[#ahead + 1] = other
    end
  end
  return ahead
end

-- The lanes ahead whose users compete with those of this lane by virtual time. Among the retries that go first, unbound
-- steps precede all others, so unbound and bound lanes do not compete there.
local function rivals(service, key, band, lane)
  local lanes = lanes_ahead(service, key, band, lane)
  if band > 0 then
    return lanes
  end
  local alike = {}
  for _, other in ipairs(lanes) do
    if is_unbound(other) == is_unbound(lane) then
      alike[#alike + 1] = other
    end
  end
  return alike
end

-- By band, the lanes all of whose steps come before the steps of this lane.
local function lanes_above(service, key, band, lane)
  local above = {}
  for higher = 0, band - 1 do
    above[higher] = lanes_ahead(service, key, higher, lane)
  end
  if band == 0 and not is_unbound(lane) then
    above[0] = { UNBOUND[0] }
  end
  return above
end

local function mean_of(service)
  return service.mean or service.cost
end

-- How many of the user's own steps in these lanes come before this entry.
local function own_before(service, lanes, entry)
  local own, key = 0, order_key(service, entry.rank, entry.seq) .. entry.job
  for _, lane in ipairs(lanes) do
    local queue = queue_of(lane, entry.user)
    own = own + call('ZLEXCOUNT', service.keys.line, '[' .. queue, '(' .. queue .. key)
  end
  return own
end

-- The number and sum of the waiting costs that are stored under this name.
local function waiting_costs(service, name)
  if not service.read_costs then
    service.read_costs = {}
    local stored = service.stored_costs and costs_of(service)[STATED] > 0 and call('HGETALL', service.keys.costs) or NONE
    for at = 1, #stored, 2 do
      service.read_costs[stored[at]] = { unpack_of(stored[at + 1]) }
    end
  end
  local waiting = service.read_costs[name]
  if waiting then
    return waiting[1], waiting[2]
  end
  return 0, 0
end

-- What a step takes from the windows of rates, and what the steps ahead of it take: as `Demand` in domain/rates.py.
local function with_ahead(demand, steps, reserved, use)
  return { steps = steps, own = demand.own, own_use = demand.own_use, reserved = reserved, use = use, mean = demand.mean,
    scale = demand.scale }
end

-- The demand of a step with this cost. The units of the `steps` steps ahead follow from their estimated work, because an
-- estimate is the stated cost of a step, times the time that a unit takes.
local function demand_of(service, cost, steps, work)
  local of, costs = rates.state.s[service.name], costs_of(service)
  local mean = of and of.m
  local own, stated, total = math.max(1, cost or mean or 0), costs[STATED], 0
  if stated <= 0 then
    local each = mean and math.max(1, mean) or own
    return { steps = steps + 1, own = own, own_use = each, reserved = steps * own, use = steps * each, mean = mean }
  end
  local scale, reserved = costs[USED_PER_COST] > 0 and costs[USED_PER_COST + 1] / costs[USED_PER_COST + 2], nil
  if costs[PER_COST] > 0 and costs[PER_COST + 1] > 0 then
    reserved = floor(work * costs[PER_COST + 2] / costs[PER_COST + 1])
  elseif costs[IN_SECONDS] and costs[PER_COST] == 0 then
    reserved = work
  else
    waiting_costs(service, '')
    for _, waiting in pairs(service.read_costs) do
      total = total + waiting[2]
    end
    reserved = floor(steps * total / stated)
  end
  return { steps = steps + 1, own = own, own_use = cost and scale and floor(own * scale) or own, reserved = reserved,
    use = scale and floor(reserved * scale) or reserved, mean = mean, scale = scale }
end

-- The mean estimate of `steps` steps, of which `stated` state a cost, in total `cost`; `plain` is that of the others.
local function mean_estimate(service, plain, steps, stated, cost)
  if stated <= 0 then
    return plain
  end
  local costs = costs_of(service)
  if costs[PER_COST] > 0 then
    cost = of_costs().scaled(costs, PER_COST, cost, stated)
  elseif not costs[IN_SECONDS] then
    return plain
  end
  steps = math.max(steps, stated)
  return floor((cost + (steps - stated) * plain) / steps)
end

-- The mean estimate of the steps of a FIFO lane. The step `without` is left out, so that the work ahead of the last step
-- of a lane is the sum of all others.
local function fifo_mean(service, lane, steps, without)
  local stated, cost = waiting_costs(service, lane)
  if without then
    steps = steps - 1
    if without.cost then
      stated, cost = stated - 1, cost - without.cost
    end
  end
  return mean_estimate(service, mean_of(service), steps, stated, cost)
end

local function fifo_ahead(service, band, lane, requested, add_row)
  local seqs, retries, retry_work, counts = service.keys.seqs, 0, 0, {}
  for _, above in pairs(lanes_above(service, seqs, band, lane)) do -- in a FIFO service, only the retries that go first
    for _, other in ipairs(above) do
      local count = call('ZLEXCOUNT', seqs, '[' .. other .. '\0', '(' .. other .. '\1')
      retries, retry_work = retries + count, retry_work + count * fifo_mean(service, other, count)
    end
  end
  local lanes = rivals(service, seqs, band, lane)
  for _, other in ipairs(lanes) do
    -- How many steps a lane has matters only if some of them state a cost.
    counts[other] = waiting_costs(service, other) > 0
      and call('ZLEXCOUNT', seqs, '[' .. other .. '\0', '(' .. other .. '\1') or 1
  end
  for _, entry in ipairs(requested) do
    local count, work = retries, retry_work
    for _, other in ipairs(lanes) do
      local before_it = call('ZLEXCOUNT', seqs, '[' .. other .. '\0', '(' .. other .. '\0' .. sortable(entry.seq))
      count = count + before_it
      work = work + before_it * fifo_mean(service, other, counts[other], other == lane and entry)
    end
    add_row(entry.job, count, work, false, retries, 0, own_before(service, lanes, entry))
  end
end

-- One user's steps in these lanes: their number, and the mean estimate and charge of one.
local function user_steps(service, user, lanes)
  local steps, stated, cost = 0, 0, 0
  for _, lane in ipairs(lanes) do
    local at = lane_at(user, lane)
    if at and user[at + 1] > 0 then
      local stated_here, cost_here = waiting_costs(service, lane .. '\0' .. user[ID])
      steps, stated, cost = steps + user[at + 1], stated + stated_here, cost + cost_here
    end
  end
  if steps == 0 then
    return 0
  end
  local estimate = mean_estimate(service, user[MEAN] or mean_of(service), steps, stated, cost)
  return steps, estimate, charge(estimate, user[WEIGHT])
end

local function mark_of(service, band, lanes, entry)
  local user, own = read_user(service, entry.user), own_before(service, lanes, entry)
  local _, _, each = user_steps(service, user, lanes)
  if own == 0 and user[NEW + band] then
    return { tag = user[NEW + band] - MIDDLE, user = user[ID], job = entry.job, own = 0, newcomer = true, cost = entry.cost }
  end
  return { tag = user[TAG + band] + own * each, user = user[ID], job = entry.job, own = own, newcomer = false,
    cost = entry.cost }
end

-- How many of a user's steps start before the marked step; ties are broken by user id.
local function served_before(tag, user_id, each, steps, mark)
  if tag > mark.tag then
    return 0
  end
  local whole = floor((mark.tag - tag) / each)
  local on_the_mark = whole * each == mark.tag - tag
  local earlier = (on_the_mark and not before(user_id, mark.user)) and whole or whole + 1
  return math.min(steps, earlier)
end

-- The index of the first sorted mark with a greater tag; one past the last if there is none.
local function first_after(marks, tag)
  local low, high = 1, #marks + 1
  while low < high do
    local middle = floor((low + high) / 2)
    if marks[middle].tag > tag then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

-- Counts, for each of these marks, the steps that start before it, and adds up their work.
local function tally_of(marks)
  table.sort(marks, function(a, b) return a.tag < b.tag end)
  local counts, works, more, more_work = {}, {}, {}, {}
  for i = 1, #marks + 1 do
    counts[i], works[i], more[i], more_work[i] = 0, 0, 0, 0
  end
  local function add(tag, user_id, each, steps, estimate)
    if steps > 0 and tag <= marks[#marks].tag then
      -- If all steps of a user are ahead of the i-th mark, they are counted once, at i. For earlier marks they are
      -- counted per mark.
      local all_before = first_after(marks, tag + (steps - 1) * each)
      counts[all_before], works[all_before] = counts[all_before] + steps, works[all_before] + steps * estimate
      for i = first_after(marks, tag - 1), all_before - 1 do
        local n = served_before(tag, user_id, each, steps, marks[i])
        more[i], more_work[i] = more[i] + n, more_work[i] + n * estimate
      end
    end
  end
  local tally = {}
  -- `new` is the user's number among the newcomers, or false.
  tally.add_user = function(new, tag, user_id, each, steps, estimate)
    if steps > 0 and new then
      add(new - MIDDLE, user_id, each, 1, estimate)
      tag, steps = tag + each, steps - 1
    end
    add(tag, user_id, each, steps, estimate)
  end
  tally.totals = function(visit)
    local count, work = 0, 0
    for i, mark in ipairs(marks) do
      count, work = count + counts[i], work + works[i]
      visit(mark, count + more[i], work + more_work[i])
    end
  end
  return tally
end

local function fair_ahead(service, band, lane, requested, users, of_users, add_row)
  local work, lanes, in_band = 0, rivals(service, service.keys.line, band, lane), {}
  local above = lanes_above(service, service.keys.line, band, lane)
  local marks = {}
  for i, entry in ipairs(requested) do
    marks[i] = mark_of(service, band, lanes, entry)
  end
  local tally = not users.grouped and tally_of(marks)
  for _, user in ipairs(users) do
    for higher, lanes_there in pairs(above) do
      local steps, estimate = user_steps(service, user, lanes_there)
      if steps > 0 then
        in_band[higher], work = (in_band[higher] or 0) + steps, work + steps * estimate
      end
    end
    if tally then
      local steps, estimate, each = user_steps(service, user, lanes)
      tally.add_user(user[NEW + band], user[TAG + band], user[ID], each, steps, estimate)
    end
  end
  local retries, higher = in_band[0] or 0, (in_band[1] or 0) + (in_band[2] or 0)
  local function visit(mark, count, work_ahead, groups)
    add_row(mark.job, retries + higher + count, work + work_ahead, mark.newcomer, retries, higher, mark.own, groups)
  end
  if tally then
    tally.totals(visit)
  else
    --- @include group_positions
    ahead_in_groups(users, band, lanes, marks, of_users, visit)
  end
end

-- The remaining work of the running steps (of those in the lane's regions, if it is bound to regions), that work by
-- user, and by step if one of them stated its cost.
local function running_work(service, lane)
  local left, of_users, ends, stated = 0, {}, {}, false
  for _, stored in ipairs(call('HVALS', service.keys.leases)) do
    local _, _, _, user_id, _, granted, running_in, _, _, _, estimate, _, _, _, _, cost =
      unpack_of(stored)
    local rest = math.max(0, estimate - math.max(0, now - granted))
    of_users[user_id] = (of_users[user_id] or 0) + rest
    if allowed_regions(service, lane, unserved) == '' or (running_in and serves(service, running_in, lane, unserved)) then
      left, ends[#ends + 1], stated = left + rest, rest, stated or cost
    end
  end
  return left, of_users, stated and ends
end

-- Slots of holds that are over but not ended yet: their number, and by region.
local function ended_holds(service)
  local over = service.held > 0 and call('ZRANGEBYSCORE', service.keys.ends, '-inf', format('%d', now)) or NONE
  local by_region = {}
  for _, key in ipairs(over) do
    local region = unpack_of(call('HGET', service.keys.holds, key))[2]
    if region then
      by_region[region] = (by_region[region] or 0) + 1
    end
  end
  return #over, by_region
end

-- How many slots of holds that are over but not ended yet are slots of the pool.
local function ended_of_pool(service)
  local over, by_region = ended_holds(service)
  if service.partial then
    over = 0
    for region, count in pairs(by_region) do
      over = over + (in_pool(service, region) and count or 0)
    end
  end
  return over
end

-- Whether steps of this lane may be called in this region now.
local function is_open(service, region, lane)
  return serves(service, region, lane, unserved) and not unserved[service.name .. ':' .. region]
end

-- How many slots the steps of this lane could use if all were free, and how many of these are free now (0 for a paused
-- service).
local function slots_of(service, lane)
  local slots, free, pool, pool_free = service.limit, service.limit, math.huge, math.huge
  local over, over_in = ended_holds(service)
  free = free - service.leased - service.held + over
  if scope.pool_limit then
    pool, pool_free = scope.pool_limit, scope.pool_limit
    for _, other in ipairs(pooled) do
      pool_free = pool_free - taken_of_pool(other) + ended_of_pool(other)
    end
    pool_free = math.max(0, pool_free)
  end
  if service.regional then
    local counting, counting_free, others, others_free = 0, 0, 0, 0
    for i = 1, #service.regions, 2 do
      local name, limit = service.regions[i], service.regions[i + 1]
      if is_open(service, name, lane) then
        local free_there = math.max(0, region_free(service, name, limit, over_in[name]))
        if in_pool(service, name) then
          counting, counting_free = counting + limit, counting_free + free_there
        else
          others, others_free = others + limit, others_free + free_there
        end
      end
    end
    slots = math.min(slots, math.min(pool, counting) + others)
    free = math.min(free, math.min(pool_free, counting_free) + others_free)
  else
    slots, free = math.min(slots, pool), math.min(free, pool_free)
  end
  return slots, service.paused and 0 or math.max(0, free)
end

-- µs until the first of the lane's regions accepts calls again; 0 if one of them accepts calls now.
local function rest_of(service, lane)
  local first = nil
  for i = 1, #service.regions, 2 do
    local name = service.regions[i]
    if is_open(service, name, lane) then
      local health = service.health[name]
      local rest = health and math.max(0, health[UNTIL] - now) or 0
      first = math.min(first or rest, rest)
    end
  end
  return first or 0
end

-- The slots of the lane that are not held, because only these serve steps until the holds end. If all of them are held,
-- the slots and the µs until the first hold ends.
local function without_held(service, lane, slots, rests)
  local held, first = 0, nil
  local ends = call('ZRANGEBYSCORE', service.keys.ends, format('(%d', now), '+inf', 'WITHSCORES')
  for i = 1, #ends, 2 do
    local region = unpack_of(call('HGET', service.keys.holds, ends[i]))[2]
    if allowed_regions(service, lane, unserved) == '' or (region and serves(service, region, lane, unserved)) then
      held, first = held + 1, first or tonumber(ends[i + 1])
    end
  end
  if held == 0 or slots > held then
    return slots - held, rests
  end
  return slots, math.max(rests, first - now)
end

-- µs until the rates of the service, its pool and the first of the lane's regions allow a step of this demand; and until
-- the rate of its user does, for the `own`-th step of the user.
local function rate_waits(service, entry, lane, demand, own)
  local of = rates.state.s[service.name]
  if not of then
    return 0, 0
  end
  local duration, first = mean_of(service), nil
  local waits = rates.window_wait(of.o, demand, duration)
  if rates.state.p and scope.pool_limit and not service.partial then
    waits = math.max(waits, rates.window_wait(rates.state.p, demand, duration))
  end
  for i = 1, next(of.r) and #service.regions or 0, 2 do
    local name = service.regions[i]
    if is_open(service, name, lane) then
      local wait = of.r[name] and rates.window_wait(of.r[name], demand, duration) or 0
      first = math.min(first or wait, wait)
    end
  end
  local found = rates.member_window(service, entry.user)
  local alike = with_ahead(demand, own, (own - 1) * demand.own, (own - 1) * demand.own_use)
  return math.max(waits, first or 0), found and rates.window_wait(found, alike, duration) or 0
end

-- What the estimate of a step is based on.
local function estimated_by(service, user, cost)
  if cost and (costs_of(service)[PER_COST] > 0 or costs_of(service)[IN_SECONDS]) then
    return 0
  end
  return user[MEAN] and 1 or service.mean and 2 or 3
end

local function all_users(service)
  local users = {}
  each_stored_user(service, function(user_id, stored)
    if byte(user_id) == 1 then
      users.grouped = true
    else
      users[#users + 1] = service.users[user_id] or user_from(user_id, stored)
    end
  end)
  return users
end

if not scope.open then
  return { 0 } -- the queue is incomplete
end
local requested, jobs, rows = {}, {}, { 0 }
for i = 6, #ARGV do
  jobs[#jobs + 1] = ARGV[i]
end
for i, stored in ipairs(read_many(ENTRIES, jobs)) do
  if stored then
    local entry = read_entry(jobs[i], stored)
    local service = by_name[entry.service]
    local _, lane = where(service, entry.band, entry.rank, entry.region)
    requested[service] = requested[service] or {}
    requested[service][lane] = requested[service][lane] or {}
    table.insert(requested[service][lane], entry)
  end
end
for service, lanes in pairs(requested) do
  local users = not service.fifo and all_users(service)
  for lane, entries in pairs(lanes) do
    local band = band_of(lane)
    local running, of_users, ends = running_work(service, lane)
    local slots, free = slots_of(service, lane)
    local rests = rest_of(service, lane)
    if service.held > 0 then
      slots, rests = without_held(service, lane, slots, rests)
    end
    local entry_of, limit = {}, service.user_limit
    for _, entry in ipairs(entries) do
      entry_of[entry.job] = entry
    end
    local marks = {}
    local function add_row(job, count, work, newcomer, retries, higher, own, groups)
      local n = #rows
      marks[#marks + 1] = { count, work, row = n + 18 }
      rows[n + 1], rows[n + 2], rows[n + 3], rows[n + 4] = job, count + 1, work + running, slots
      rows[n + 5], rows[n + 6], rows[n + 7], rows[n + 8] = mean_of(service), free, service.name, band
      rows[n + 9], rows[n + 10], rows[n + 11], rows[n + 12] = newcomer and 1 or 0, retries, higher, own
      rows[n + 13], rows[n + 14], rows[n + 15], rows[n + 16], rows[n + 17], rows[n + 18] = running, -1, 0, 0, rests, -1
      local entry = entry_of[job]
      local user = read_user(service, entry.user)
      rows[n + 19], rows[n + 20], rows[n + 21] = 0, 0, groups or ''
      rows[n + 22], rows[n + 23] = estimate_of(service, user, entry.cost), estimated_by(service, user, entry.cost)
      if rates then
        rows[n + 19], rows[n + 20] = rate_waits(service, entry, lane, demand_of(service, entry.cost, count, work), own + 1)
      end
      if limit then
        rows[n + 14], rows[n + 15] = limit, math.max(0, limit - user[RUNNING])
        rows[n + 16] = of_users[user[ID]] or 0
      end
    end
    if service.fifo then
      fifo_ahead(service, band, lane, entries, add_row)
    else
      fair_ahead(service, band, lane, entries, users, of_users, add_row)
    end
    if ends and slots > 0 then
      set_slot_waits(marks, ends, slots, free, mean_of(service))
      for _, mark in ipairs(marks) do
        rows[mark.row] = mark.wait
      end
    end
  end
end
return rows
