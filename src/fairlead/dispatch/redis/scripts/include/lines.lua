-- Users and their lines. The same verbs as memory/lines.py and memory/service.py: join, leave, settle, forget.
--
-- A user is a list: what only this call knows of it, then what is stored, then three values for each lane in which it
-- waits: the lane's name, how many wait there, and the standing under which its heads have the user, or false. Lanes are
-- named band + `-` (unbound) or band + `=region`, or with several regions `=eu+us`. A list, and not a table of names with tables in it, because it is made
-- of the stored values in one step: 0.3 µs instead of 1.4.
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
--
-- `user[TAG + band]` is a virtual time, or false; `user[NEW + band]` its number among the newcomers until its first
-- grant, or false.

local function user_from(user_id, stored)
  return { user_id, false, false, 0, unpack_of(stored) }
end

local function stored_user(user)
  return pack(unpack(user, WEIGHT))
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

-- Read many users at once: one call, not one each.
local function read_users(service, ids)
  local users, missing, count = service.users, {}, 0
  for i = 1, #ids do
    if users[ids[i]] == nil then
      users[ids[i]] = false
      count = count + 1
      missing[count] = ids[i]
    end
  end
  local read = read_many(service.keys.users, missing)
  for i = 1, count do
    users[missing[i]] = read[i] and user_from(missing[i], read[i])
    service.known = service.known or users[missing[i]]
  end
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

-- What the heads have of this user is to be written anew, once, however often it moves.
local function mark_stale(service, user)
  user[CHANGED] = true
  if not user[STALE] then
    user[STALE] = true
    service.stale[#service.stale + 1] = user
  end
end

local function band_of(lane)
  return byte(lane) - 48
end

-- Where in the list the lane is, if the user waits there.
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

-- Where a step waits: its band, and its lane's name.
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

-- Within one user: retries, then jobs under way, then arrivals, each by seq; FIFO lanes know seq only.
local function order_key(service, rank, seq)
  if service.fifo or seq < 0 then
    rank = 0
  end
  return format('%d%016d', rank, seq + MIDDLE)
end

local function line_of(lane, user_id)
  return lane .. '\0' .. format('%04x', #user_id) .. user_id
end

-- The same and more, at once: every text that is made on the way to another is looked up among all texts there are.
local function line_member(lane, user_id, order, job)
  return lane .. '\0' .. format('%04x', #user_id) .. user_id .. order .. job
end

local function put_in_line(service)
  if #service.joining > 0 then
    call_many('ZADD', service.keys.line, service.joining, 2)
    service.joining = {}
  end
  if #service.joining_seqs > 0 then
    call_many('ZADD', service.keys.seqs, service.joining_seqs, 2)
    service.joining_seqs = {}
  end
end

-- The first of a user's steps in a lane, as order key and job.
local function first_in_line(service, lane, user_id)
  local line = line_of(lane, user_id)
  local first = call('ZRANGEBYLEX', service.keys.line, '[' .. line, '(' .. line .. ':', 'LIMIT', '0', '1')[1]
  return first and sub(first, #line + 1), first
end

-- Who stands where is written late, once per user however often it moved; always before anyone is picked.
local function restand(service, user, left, stood)
  local last = #user
  for at = last - 2, LANES, -3 do
    local lane, stood_at, standing = user[at], user[at + 2], false
    if user[at + 1] > 0 and not user[PARKED] then
      if service.fifo then
        standing = sub(first_in_line(service, lane, user[ID]), 2, 17)
      else
        -- A newcomer's number, not being raised by MIDDLE, sorts before every tag.
        local band = band_of(lane)
        standing = user[NEW + band] and format('%016d', user[NEW + band]) or sortable(user[TAG + band])
      end
    end
    if standing ~= stood_at then
      if stood_at then
        left[#left + 1] = lane .. '\0' .. stood_at .. user[ID]
      end
      if standing then
        local n = #stood
        stood[n + 1], stood[n + 2] = '0', lane .. '\0' .. standing .. user[ID]
      end
      user[at + 2] = standing
    end
    if user[at + 1] == 0 then
      -- The last lane takes its place: it was seen already.
      user[at], user[at + 1], user[at + 2] = user[last - 2], user[last - 1], user[last]
      user[last], user[last - 1], user[last - 2] = nil, nil, nil
      last = last - 3
    end
  end
  user[STALE] = false
end

local function refresh(service)
  put_in_line(service)
  if #service.stale == 0 then
    return
  end
  local left, stood = {}, {}
  for _, user in ipairs(service.stale) do
    if user[STALE] then
      restand(service, user, left, stood)
    end
  end
  service.stale = {}
  call_many('ZREM', service.keys.heads, left)
  call_many('ZADD', service.keys.heads, stood, 2)
end

local function refresh_user(service, user)
  local left, stood = {}, {}
  restand(service, user, left, stood)
  call_many('ZREM', service.keys.heads, left)
  call_many('ZADD', service.keys.heads, stood, 2)
end

-- No credit saved up, no debt forgotten; and who has no debt is new, at the end of those who are.
local function enter(service, user, band)
  local tag = user[TAG + band]
  user[NEW + band] = false
  if not tag or tag <= service.vt[band] then
    user[TAG + band] = service.vt[band]
    service.arrivals = service.arrivals + 1
    user[NEW + band] = service.arrivals
  end
end

-- A grant: the virtual time is the user's tag, unless it is new; the user moves back by what this will cost.
local function move_back(service, user, band, charged)
  local tag = user[TAG + band]
  if user[NEW + band] then
    user[NEW + band] = false
  else
    service.vt[band] = tag
  end
  user[TAG + band] = tag + charged
end

local function join_line(service, user, job, seq, band, rank, region)
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
  user[CHANGED] = true
  if service.fifo or not at then -- else it stands as it stood
    mark_stale(service, user)
  end
  local joining, n = service.joining, #service.joining
  joining[n + 1], joining[n + 2] = '0', line_member(lane, user[ID], order_key(service, rank, seq), job)
  if service.fifo then
    local seqs = service.joining_seqs
    n = #seqs
    seqs[n + 1], seqs[n + 2] = '0', lane .. '\0' .. sortable(seq) .. job
  end
end

local function join(service, user, job, seq, band, rank, region)
  join_line(service, user, job, seq, band, rank, region)
  service.waiting[band] = service.waiting[band] + 1
  user[WAITING] = user[WAITING] + 1
end

local function count_out(service, entry, user, lane)
  local at = lane_at(user, lane)
  user[at + 1] = user[at + 1] - 1
  user[WAITING] = user[WAITING] - 1
  mark_stale(service, user)
  service.waiting[entry.band] = service.waiting[entry.band] - 1
  if service.fifo then
    call('ZREM', service.keys.seqs, lane .. '\0' .. sortable(entry.seq) .. entry.job)
  end
end

-- Whether a user with nothing to do is still to be remembered, because of a debt in some band.
local function lingers(service, user)
  for band = 0, 3 do
    local tag = user[TAG + band]
    if not service.fifo and tag and tag > service.vt[band] then
      call('ZADD', service.keys.idle, '0', band .. sortable(tag) .. user[ID])
      return true
    end
  end
  return false
end

local function forget_if_idle(service, user)
  if user and user[WAITING] == 0 and user[RUNNING] == 0 and not lingers(service, user) then
    refresh_user(service, user)
    service.users[user[ID]] = false
    service.gone[user[ID]] = true
  end
end

-- A user at its limit is set aside, and let back in when below it.
local function park_or_unpark(service, user)
  local limit = service.user_limit
  local parked = limit and user[RUNNING] >= limit
  if parked == user[PARKED] then
    return
  end
  user[PARKED] = parked
  mark_stale(service, user)
  for band = 0, 3 do
    if not parked and not service.fifo and waits(user, band) then
      enter(service, user, band)
    end
  end
end

local function charge(cost, weight)
  local charged = floor(cost / weight)
  return charged > 1 and charged or 1
end

local function smoothed(mean, measured)
  return mean and mean + floor((measured - mean) / 8) or measured
end

-- The mean of all of a service's calls, until so many are remembered that it forgets the oldest slowly.
local function average(service, measured)
  service.measured = math.min(service.measured + 1, 64)
  service.mean = service.mean and service.mean + floor((measured - service.mean) / service.measured) or measured
end

-- How long a step is thought to take, in microseconds.
local function estimate_of(service, user, cost)
  return user[MEAN] or service.mean or cost or service.cost
end

local function read_entry(job, stored)
  local seq, user, service, band, rank, step, run, cost, region, weight = unpack_of(stored)
  return { job = job, seq = seq, user = user, service = service, band = band, rank = rank, step = step, run = run,
    cost = cost, region = region, weight = weight }
end

local function stored_entry(e)
  return pack(e.seq, e.user, e.service, e.band, e.rank, e.step, e.run, e.cost, e.region, e.weight)
end
