-- Users and their lines. The same verbs as memory/lines.py and memory/service.py: join, leave, settle, forget.
--
-- A user's record: weight, waiting, running, mean, parked, tags by band, and by lane how many wait and the standing
-- under which the lane's heads have it. Lanes are named band + `-` (unbound) or band + `=region`.

-- With all fields that it will ever have: a table that grows later is built twice.
local function user_from(user_id, stored)
  local r = unpack_of(stored)
  return { id = user_id, weight = r[1], waiting = r[2], running = r[3], mean = r[4], parked = r[5],
    tags = { [0] = r[6], r[7], r[8], r[9] }, lanes = r[10], stale = false, changed = false, taken = 0 }
end

local function read_user(service, user_id)
  local user = service.users[user_id]
  if user == nil then
    local stored = call('HGET', service.keys.users, user_id)
    user = stored and user_from(user_id, stored) or false
    service.users[user_id] = user
  end
  return user
end

-- Read many users at once: one call, not one each.
local function read_users(service, ids)
  local missing = {}
  for _, id in ipairs(ids) do
    if service.users[id] == nil then
      service.users[id] = false
      missing[#missing + 1] = id
    end
  end
  for i, stored in ipairs(read_many(service.keys.users, missing)) do
    service.users[missing[i]] = stored and user_from(missing[i], stored) or false
  end
end

-- All users there are, as they were stored.
local function each_stored_user(service, visit)
  local cursor = '0'
  repeat
    local page = call('HSCAN', service.keys.users, cursor, 'COUNT', 1000)
    cursor = page[1]
    for i = 1, #page[2], 2 do
      visit(page[2][i], page[2][i + 1])
    end
  until cursor == '0'
end

local function user_of(service, user_id)
  local user = read_user(service, user_id)
  if not user then
    user = { id = user_id, weight = 1, waiting = 0, running = 0, mean = false, parked = false,
      tags = { [0] = false, false, false, false }, lanes = {}, stale = false, changed = false, taken = 0 }
    service.users[user_id] = user
  end
  user.changed = true
  return user
end

local function stored_user(user)
  local t = user.tags
  return pack({ user.weight, user.waiting, user.running, user.mean, user.parked, t[0], t[1], t[2], t[3], user.lanes })
end

-- Where a step waits: its band, and its lane's name.
local function where(service, entry)
  local lane = '-'
  if service.regional and entry.region then
    lane = '=' .. entry.region
  end
  local band = entry.band
  if service.rules.retries_first and entry.rank == 0 then
    band = 0
  elseif service.fifo then
    band = 1
  end
  return band, band .. lane
end

-- Within one user: retries, then jobs under way, then arrivals, each by seq; FIFO lanes know seq only.
local function order_key(service, entry)
  local rank = (service.fifo or entry.seq < 0) and 0 or entry.rank
  return rank .. sortable(entry.seq)
end

local function line_of(lane, user_id)
  return lane .. '\0' .. format('%04x', #user_id) .. user_id
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
  local first = call('ZRANGEBYLEX', service.keys.line, '[' .. line, '(' .. line .. ':', 'LIMIT', 0, 1)[1]
  return first and sub(first, #line + 1), first
end

-- Who stands where is written late, once per user however often it moved; always before anyone is picked.
local function restand(service, user, left, stood)
  for lane, record in pairs(user.lanes) do
    local standing = false
    if record[1] > 0 and not user.parked then
      if service.fifo then
        local suffix = first_in_line(service, lane, user.id)
        standing = sub(suffix, 2, 17)
      else
        standing = sortable(user.tags[tonumber(sub(lane, 1, 1))])
      end
    end
    if standing ~= record[2] then
      if record[2] then
        left[#left + 1] = lane .. '\0' .. record[2] .. user.id
      end
      if standing then
        stood[#stood + 1] = 0
        stood[#stood + 1] = lane .. '\0' .. standing .. user.id
      end
      record[2] = standing
    end
    if record[1] == 0 then
      user.lanes[lane] = nil
    end
  end
  user.stale = false
end

local function refresh(service)
  put_in_line(service)
  local left, stood = {}, {}
  for _, user in pairs(service.users) do
    if user and user.stale then
      restand(service, user, left, stood)
    end
  end
  call_many('ZREM', service.keys.heads, left)
  call_many('ZADD', service.keys.heads, stood, 2)
end

local function refresh_user(service, user)
  local left, stood = {}, {}
  restand(service, user, left, stood)
  call_many('ZREM', service.keys.heads, left)
  call_many('ZADD', service.keys.heads, stood, 2)
end

local function waits(user, band)
  for lane, record in pairs(user.lanes) do
    if record[1] > 0 and tonumber(sub(lane, 1, 1)) == band then
      return true
    end
  end
  return false
end

-- No credit saved up, no debt forgotten.
local function enter(service, user, band)
  user.tags[band] = math.max(user.tags[band] or 0, service.vt[band])
end

local function join_line(service, entry, user)
  local band, lane = where(service, entry)
  if not service.fifo and not waits(user, band) then
    enter(service, user, band)
  end
  local record = user.lanes[lane]
  if not record then
    record = { 0, false }
    user.lanes[lane] = record
  end
  record[1] = record[1] + 1
  local joining = service.joining
  joining[#joining + 1] = 0
  joining[#joining + 1] = line_of(lane, user.id) .. order_key(service, entry) .. entry.job
  if service.fifo then
    local seqs = service.joining_seqs
    seqs[#seqs + 1] = 0
    seqs[#seqs + 1] = lane .. '\0' .. sortable(entry.seq) .. entry.job
  end
  user.stale, user.changed = true, true
end

local function join(service, entry, user)
  join_line(service, entry, user)
  service.waiting[entry.band] = service.waiting[entry.band] + 1
  user.waiting = user.waiting + 1
end

local function count_out(service, entry, user, lane)
  user.lanes[lane][1] = user.lanes[lane][1] - 1
  user.waiting = user.waiting - 1
  user.stale, user.changed = true, true
  service.waiting[entry.band] = service.waiting[entry.band] - 1
  if service.fifo then
    call('ZREM', service.keys.seqs, lane .. '\0' .. sortable(entry.seq) .. entry.job)
  end
end

-- Take out of line. The caller forgets the user, if it is idle, when the move is complete.
local function leave(service, entry)
  put_in_line(service)
  local _, lane = where(service, entry)
  call('ZREM', service.keys.line, line_of(lane, entry.user) .. order_key(service, entry) .. entry.job)
  count_out(service, entry, user_of(service, entry.user), lane)
end

-- A step takes the place of an older one of the same job. It joins before the other leaves: who has just this one
-- step waiting does not enter the band anew.
local function replace_in_line(old_service, old, service, new, user)
  local _, old_lane = where(old_service, old)
  local _, lane = where(service, new)
  local same_place = old_service == service and old.user == new.user and old_lane == lane
  if same_place and order_key(service, old) == order_key(service, new) then
    service.waiting[old.band] = service.waiting[old.band] - 1
    service.waiting[new.band] = service.waiting[new.band] + 1
    user.changed = true
    return
  end
  join(service, new, user)
  leave(old_service, old)
end

-- Whether a user with nothing to do is still to be remembered, because of a debt in some band.
local function lingers(service, user)
  for band = 0, 3 do
    local tag = user.tags[band]
    if not service.fifo and tag and tag > service.vt[band] then
      call('ZADD', service.keys.idle, 0, band .. sortable(tag) .. user.id)
      return true
    end
  end
  return false
end

local function forget_if_idle(service, user_id)
  local user = read_user(service, user_id)
  if user and user.waiting == 0 and user.running == 0 and not lingers(service, user) then
    refresh_user(service, user)
    service.users[user_id] = false
    service.gone[user_id] = true
  end
end

-- A user at its limit is set aside, and let back in when below it.
local function park_or_unpark(service, user)
  local limit = service.rules.user_limit
  local parked = limit ~= nil and user.running >= limit
  if parked == user.parked then
    return
  end
  user.parked, user.stale, user.changed = parked, true, true
  for band = 0, 3 do
    if not parked and not service.fifo and waits(user, band) then
      enter(service, user, band)
    end
  end
end

local function charge(cost, weight)
  return math.max(1, floor(cost / weight))
end

local function smoothed(mean, measured)
  return mean and mean + floor((measured - mean) / 8) or measured
end

-- How long a step is thought to take, in microseconds.
local function estimate_of(service, user, cost)
  return user.mean or service.mean or cost or service.rules.cost
end

local function read_entry(job, stored)
  local e = unpack_of(stored)
  return { job = job, seq = e[1], user = e[2], service = e[3], band = e[4], rank = e[5], step = e[6], run = e[7],
    cost = e[8], region = e[9] }
end

local function stored_entry(e)
  return pack({ e.seq, e.user, e.service, e.band, e.rank, e.step, e.run, e.cost, e.region })
end
