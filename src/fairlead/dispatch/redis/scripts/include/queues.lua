-- Users and their queues. Same behaviour as dispatch/memory/fair_queue.py and dispatch/memory/service.py.
--
-- A user is a list: values of this call only, then the stored ones, then three values for each lane in which it waits:
-- the lane's name, the number of waiting steps, and the sort key under which the heads contain the user, or false.
-- Lanes are named band + `-` (unbound), band + `=region`, or with several regions band + `=eu+us`. A user is a
-- list and not a table with named fields, because a list is created from the stored values in one call: 0.3 µs, not 1.4.
--
--- @const ID 1
--- @const STALE 2
--- @const CHANGED 3
--- @const TAKEN 4
--- @const WEIGHT 5
--- @const WAITING 6
--- @const RUNNING 7
--- @const MEAN 8
--- @const PARKED 9
--- @const TAG 10
--- @const NEW 14
--- @const LANES 18
--- @const GROUP 20
--- @const MEMBER_LANES 21
--- @const GROUP_TIMES 22
--- @const GROUP_LANES 27
--- @const MOST_IDLE 10000
--
-- `user[TAG + band]` is a virtual time or false; `user[NEW + band]` the user's number among the newcomers until its
-- first grant, or false. A user with a lane `@` is in a group, and `of_groups` returns the functions that keep account of
-- it (include/groups.lua).

local of_groups

local function user_from(user_id, stored)
  return { user_id, false, false, 0, unpack_of(stored) }
end

-- The stored values: pack(unpack(user, WEIGHT)), but in half the time.
--- @const NOT_NEW '\194\194\194\194'
--- @const SORT_KEY '\176'
--- @const LAST_KEY '9999999999999999'
local in_group = {} -- the packed values of a user's lane `@`, by group
local function stored_user(user)
  local weight, waiting, running, mean, parked, t0, t1, t2, t3, n0, n1, n2, n3, lane, steps, sort_key, more, second_steps,
    second_key, third = unpack(user, WEIGHT)
  local group, lanes, mark = '', '', SORT_KEY
  if lane == '@' and more ~= '#' then
    group = in_group[sort_key]
    if not group then
      group = pack(lane, steps, sort_key)
      in_group[sort_key] = group
    end
    lane, steps, sort_key, more = more, second_steps, second_key, third
  end
  if more or not sort_key then -- more than one lane or none, no head, or a group
    lanes, steps, mark, sort_key = lane and pack(unpack(user, group == '' and LANES or MEMBER_LANES)) or '', '', '', ''
  else
    lanes, steps = packed[lane], packed[steps]
  end
  return packed[weight] .. packed[waiting] .. packed[running] .. pack(mean) .. packed[parked]
    .. (t0 and pack(t0) or FALSE) .. (t1 and pack(t1) or FALSE) .. (t2 and pack(t2) or FALSE)
    .. (t3 and pack(t3) or FALSE) .. ((n0 or n1 or n2 or n3) and pack(n0, n1, n2, n3) or NOT_NEW)
    .. group .. lanes .. steps .. mark .. sort_key
end

local function read_user(service, user_id)
  local user = service.users[user_id]
  if user == nil then
    local stored = call('HGET', service.keys.users, user_id)
    user = stored and user_from(user_id, stored)
    service.users[user_id] = user
    service.known = service.known or user
  end
  return user
end

-- Read many users with one command.
local function read_users(service, ids)
  local users, known, missing, count = service.users, service.known, {}, 0
  for i = 1, #ids do
    local id = ids[i]
    if users[id] == nil then
      users[id] = false
      count = count + 1
      missing[count] = id
    end
  end
  local read = read_many(service.keys.users, missing)
  for i = 1, count do
    local stored = read[i]
    if stored then
      local id = missing[i]
      users[id], known = { id, false, false, 0, unpack_of(stored) }, true -- as `user_from`
    end
  end
  service.known = known
end

local function user_of(service, user_id)
  local user = read_user(service, user_id)
  if not user then
    user = { user_id, false, false, 0, 1, 0, 0, false, false, false, false, false, false, false, false, false, false }
    service.users[user_id] = user
  end
  user[CHANGED] = true
  return user
end

-- Mark a user whose heads have to be rewritten. They are rewritten once, however often the user moves.
local function mark_stale(service, user)
  user[CHANGED] = true
  if not user[STALE] then
    user[STALE] = true
    local stale = service.stale
    stale[#stale + 1] = user
  end
end

local function band_of(lane)
  return byte(lane) - 48
end

-- The index of the lane in the user's list, if the user waits there.
local function lane_at(user, lane)
  for at = LANES, #user, 3 do
    if user[at] == lane then
      return at
    end
  end
end

local function waits(user, band)
  for at = LANES, #user, 3 do
    if user[at + 1] > 0 and band_of(user[at]) == band then
      return true
    end
  end
  return false
end

-- The band in which a step waits, and the name of its lane.
local UNBOUND = { [0] = '0-', '1-', '2-', '3-' }
local function where(service, band, rank, region)
  if service.retries_first and rank == 0 then
    band = 0
  elseif service.fifo then
    band = 1
  end
  if service.regional and region then
    return band, band .. '=' .. region
  end
  return band, UNBOUND[band]
end

-- The order of one user's steps: retries, then later steps of running jobs, then new jobs, each by seq. FIFO lanes use
-- seq alone.
local function order_key(service, rank, seq)
  if service.fifo or seq < 0 then
    rank = 0
  end
  return format('%d%016d', rank, seq + MIDDLE)
end

-- Lengths of ids, as text.
local lengths = setmetatable({}, {
  __index = function(known, length)
    known[length] = format('%04x', length)
    return known[length]
  end,
})

local function queue_of(lane, user_id)
  return lane .. '\0' .. lengths[#user_id] .. user_id
end

-- The member of a queue, in one expression: Lua interns every intermediate string.
local function queue_member(lane, user_id, order, job)
  return lane .. '\0' .. lengths[#user_id] .. user_id .. order .. job
end

local function flush_joins(service)
  if #service.joining > 0 then
    call_many('ZADD', service.keys.line, service.joining, 2)
    service.joining = {}
  end
  if #service.joining_seqs > 0 then
    call_many('ZADD', service.keys.seqs, service.joining_seqs, 2)
    service.joining_seqs = {}
  end
end

-- The first of a user's steps in a lane, as order key and job; and as a member of the queue.
local function first_queued(service, lane, user_id)
  local queue = queue_of(lane, user_id)
  local first = call('ZRANGEBYLEX', service.keys.line, '[' .. queue, '(' .. queue .. ':', 'LIMIT', '0', '1')[1]
  return first and sub(first, #queue + 1), first
end

-- The prefix of the heads within a group; false: those that are in none.
local prefixes = { [false] = '' }
local function heads_prefix(group)
  prefixes[group] = 'g' .. sub(group, 2) .. '\0'
  return prefixes[group]
end

-- Update the heads of a user. Heads are written late, so that each user is written once however often it moved, but
-- always before a pick.
local removed, removed_count, added, added_count = {}, 0, {}, 0
local function update_heads(service, user)
  local last, lanes, prefix, fifo = #user, LANES, '', service.fifo
  if user[LANES] == '@' then
    lanes = user[MEMBER_LANES] == '#' and GROUP_LANES or MEMBER_LANES
    prefix = fifo and '' or prefixes[user[GROUP]] or heads_prefix(user[GROUP])
  end
  for at = last - 2, lanes, -3 do
    local lane, steps, old_key, sort_key = user[at], user[at + 1], user[at + 2], false
    if steps > 0 and not user[PARKED] then
      if fifo then
        sort_key = sub(first_queued(service, lane, user[ID]), 2, 17)
      else
        -- Newcomers' numbers are not raised by MIDDLE, so they sort before every tag.
        local band = byte(lane) - 48
        sort_key = format('%016d', user[NEW + band] or user[TAG + band] + MIDDLE)
        if #sort_key > 16 then -- after years: the virtual times of a rebuilt queue begin at 0
          sort_key, scope.worn_out = LAST_KEY, true
        end
      end
    end
    if sort_key ~= old_key then
      if old_key then
        removed_count = removed_count + 1
        removed[removed_count] = prefix .. lane .. '\0' .. old_key .. user[ID]
      end
      if sort_key then
        added_count = added_count + 2
        added[added_count - 1], added[added_count] = '0', prefix .. lane .. '\0' .. sort_key .. user[ID]
      end
      user[at + 2] = sort_key
    end
    if steps == 0 then
      -- The last lane, which was visited before, takes the place of the removed one.
      user[at], user[at + 1], user[at + 2] = user[last - 2], user[last - 1], user[last]
      user[last], user[last - 1], user[last - 2] = nil, nil, nil
      last = last - 3
    end
  end
  user[STALE] = false
end

local function write_heads(service)
  if removed_count > 0 then
    call_many('ZREM', service.keys.heads, removed)
    removed, removed_count = {}, 0
  end
  if added_count > 0 then
    call_many('ZADD', service.keys.heads, added, 2)
    added, added_count = {}, 0
  end
end

local function refresh(service)
  flush_joins(service)
  if #service.stale == 0 then
    return
  end
  for _, user in ipairs(service.stale) do
    if user[STALE] then
      update_heads(service, user)
    end
  end
  service.stale = {}
  write_heads(service)
end

local function refresh_user(service, user)
  update_heads(service, user)
  write_heads(service)
end

-- Keep a tag above the virtual time; otherwise the user starts at the virtual time, as the last of the newcomers.
local function enter(service, user, band)
  local tag, time = user[TAG + band], service.vt[band]
  if user[LANES] == '@' then
    time = of_groups().time(service, user, band)
  end
  user[NEW + band] = false
  if not tag or tag <= time then
    user[TAG + band] = time
    service.arrivals = service.arrivals + 1
    user[NEW + band] = service.arrivals
  end
end

-- Charge a grant to the user. The virtual time becomes the user's tag, unless the user is new.
local function move_back(service, user, band, charged)
  local tag = user[TAG + band]
  if user[NEW + band] then
    user[NEW + band] = false
  elseif user[LANES] == '@' then
    of_groups().set_time(service, user, band, tag)
  else
    service.vt[band] = tag
  end
  user[TAG + band] = tag + charged
end

local function join_queue(service, user, job, seq, band, rank, region, cost)
  local lane
  band, lane = where(service, band, rank, region)
  local at = lane_at(user, lane)
  if not service.fifo and not (at and user[at + 1] > 0) and not waits(user, band) then
    enter(service, user, band)
  end
  if at then
    user[at + 1] = user[at + 1] + 1
  else
    local n = #user
    user[n + 1], user[n + 2], user[n + 3] = lane, 1, false
  end
  if user[LANES] == '@' and not user[PARKED] and user[lane_at(user, lane) + 1] == 1 then
    of_groups().raise(service, user, lane)
  end
  user[CHANGED] = true
  if service.fifo or not at then -- otherwise its heads are unchanged
    mark_stale(service, user)
  end
  local joining, n = service.joining, #service.joining
  joining[n + 1], joining[n + 2] = '0', queue_member(lane, user[ID], order_key(service, rank, seq), job)
  if service.fifo then
    local seqs = service.joining_seqs
    n = #seqs
    seqs[n + 1], seqs[n + 2] = '0', lane .. '\0' .. sortable(seq) .. job
  end
  if cost then
    of_costs().count(service, lane, user[ID], 1, cost)
  end
end

local function join(service, user, job, seq, band, rank, region, cost)
  join_queue(service, user, job, seq, band, rank, region, cost)
  service.waiting[band] = service.waiting[band] + 1
  user[WAITING] = user[WAITING] + 1
end

local function count_out(service, entry, user, lane)
  local at = lane_at(user, lane)
  user[at + 1] = user[at + 1] - 1
  user[WAITING] = user[WAITING] - 1
  mark_stale(service, user)
  if user[LANES] == '@' and not user[PARKED] and user[at + 1] == 0 then
    of_groups().lower(service, user, lane)
  end
  service.waiting[entry.band] = service.waiting[entry.band] - 1
  if service.fifo then
    call('ZREM', service.keys.seqs, lane .. '\0' .. sortable(entry.seq) .. entry.job)
  end
  if entry.cost then
    of_costs().count(service, lane, user[ID], -1, -entry.cost)
  end
end

local function forget(service, user)
  refresh_user(service, user)
  service.users[user[ID]] = false
  service.gone[user[ID]] = true
  if user[LANES] == '@' then
    of_groups().left(service, user)
  end
end

-- If too many idle users are remembered for their debt, forget the one with the least debt in this band, of those whose
-- members of the idle set begin with the prefix.
local function forget_beyond(service, prefix, band)
  local idle = service.keys.idle
  if call('ZCARD', idle) > MOST_IDLE then
    local member = call('ZRANGEBYLEX', idle, '[' .. prefix .. band, '+', 'LIMIT', '0', '1')[1]
    call('ZREM', idle, member)
    local user = read_user(service, sub(member, #prefix + 18))
    if user and user[WAITING] == 0 and user[RUNNING] == 0 then
      forget(service, user)
    end
  end
end

-- Whether an idle user has to be remembered because of a debt in some band.
local function has_debt(service, user)
  for band = 0, 3 do
    local tag, time, prefix = user[TAG + band], service.vt[band], ''
    if user[LANES] == '@' then
      time, prefix = of_groups().time(service, user, band), select(2, of_groups().heads_of(service, user))
    end
    if not service.fifo and tag and tag > time then
      if call('ZADD', service.keys.idle, '0', prefix .. band .. sortable(tag) .. user[ID]) == 1 then
        forget_beyond(service, prefix, band)
      end
      return true
    end
  end
  return false
end

local function forget_if_idle(service, user)
  if user and user[WAITING] == 0 and user[RUNNING] == 0 and not has_debt(service, user) then
    forget(service, user)
  end
end

-- Park a user at its limit or rate, and unpark it when it is below.
local function park_or_unpark(service, user)
  local limit, was = service.user_limit, user[PARKED]
  if not limit and not was then
    return
  end
  -- A number is the time until which the user is parked because of its rate.
  local parked = type(was) == 'number' and was > now and was or limit and user[RUNNING] >= limit
  if parked == was then
    return
  end
  user[PARKED] = parked
  mark_stale(service, user)
  for band = 0, 3 do
    if not parked and not service.fifo and waits(user, band) then
      enter(service, user, band)
    end
  end
  if user[LANES] == '@' and (not was) ~= (not parked) then
    of_groups().park_changed(service, user)
  end
end

--- @const MOST_CHARGED 10000000000000
local function charge(cost, weight)
  local charged = cost / weight
  if charged >= MOST_CHARGED then
    return MOST_CHARGED
  end
  charged = charged - charged % 1
  return charged > 1 and charged or 1
end

local function smoothed(mean, measured)
  if not mean then
    return measured
  end
  local change = (measured - mean) / 8
  return mean + (change - change % 1)
end

-- Update the mean duration of a service's calls: an average of the first 64, then a moving one.
local function average(service, measured)
  local count, mean = service.measured, service.mean
  if count < 64 then
    count = count + 1
    service.measured = count
  end
  if mean then
    local change = (measured - mean) / count
    measured = mean + (change - change % 1)
  end
  service.mean = measured
end

-- The estimated duration of a step in microseconds, called in this region if that is known: by its stated cost, else the
-- mean of its user or service.
local function estimate_of(service, user, cost, region)
  if cost then
    local costs = service.costs or costs_of(service)
    local at = region and of_costs().ratio_at(costs, region) or PER_COST
    if costs[at] > 0 then
      local amount = cost * costs[at + 1] / costs[at + 2] -- as `scaled`
      return amount < LONGEST and amount - amount % 1 or LONGEST
    elseif costs[IN_SECONDS] then
      return cost
    end
  end
  return user[MEAN] or service.mean or service.cost
end

local function read_entry(job, stored)
  local seq, user, service, band, rank, step, run, cost, region, weight, group, w1, l1, w2, l2, plan = unpack_of(stored)
  return { job = job, seq = seq, user = user, service = service, band = band, rank = rank, step = step, run = run,
    cost = cost, region = region, weight = weight, group = group and { group, w1, l1, w2, l2 }, plan = plan }
end

local function stored_entry(e)
  if e.plan then
    local group, w1, l1, w2, l2 = unpack(e.group or NONE)
    return pack(e.seq, e.user, e.service, e.band, e.rank, e.step, e.run, e.cost, e.region, e.weight, group or false,
      w1 or false, l1 or false, w2 or false, l2 or false, e.plan)
  elseif e.group then
    return pack(e.seq, e.user, e.service, e.band, e.rank, e.step, e.run, e.cost, e.region, e.weight, unpack(e.group))
  end
  return pack(e.seq, e.user, e.service, e.band, e.rank, e.step, e.run, e.cost, e.region, e.weight)
end

local group_functions
of_groups = function() -- also as scope.groups: the functions below `@nest` may capture at most 60 locals
  if not group_functions then
    --- @include groups
    group_functions = {
      heads_of = heads_of, time = time, set_time = set_time, raise = raise, lower = lower, left = left,
      park_changed = park_changed, count_running = count_running, charge = charge_groups, released = released,
      place = place, each = each_group, set_group = set_group, park_or_unpark = park_or_unpark_group, next_user = next_user,
    }
  end
  return group_functions
end
scope.groups = of_groups
