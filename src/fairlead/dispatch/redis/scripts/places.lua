-- places: where waiting steps stand, as if nothing more arrived and everything took as long as estimated.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5..]          jobs
--
-- Returns {0}, then five values each: job, position, work ahead in µs, slots, mean in µs. Jobs not in line here are
-- absent.
--
-- FIFO lanes: counted exactly. Fair lanes: the n-th waiting step of a user starts at tag + n * charge, so the steps
-- before a given one can be counted per user, in one pass over the users for all steps asked about. The first step of a
-- newcomer starts where the newcomer stands instead, before all virtual times. As memory/places.py.
--- @include scope
--- @include lines
--- @include moves

-- The lanes of a band, by hopping from one to the next in a set that sorts by lane.
local function lanes_of(key, band)
  local lanes, from = {}, '[' .. band
  while true do
    local member = call('ZRANGEBYLEX', key, from, '(' .. (band + 1), 'LIMIT', '0', '1')[1]
    if not member then
      return lanes
    end
    local lane = string.match(member, '^[^%z]+')
    lanes[#lanes + 1] = lane
    from = '[' .. lane .. '\1'
  end
end

-- A step bound to a region waits behind that lane and the unbound one; an unbound step behind all of them.
local function lanes_ahead(key, band, lane)
  if sub(lane, 2, 2) == '-' then
    return lanes_of(key, band)
  end
  return { band .. '-', band .. sub(lane, 2) }
end

local function mean_of(service)
  return service.mean or service.cost
end

local function fifo_ahead(service, band, lane, asked, answer)
  local seqs, higher = service.keys.seqs, 0
  for above = 0, band - 1 do
    for _, other in ipairs(lanes_ahead(seqs, above, lane)) do
      higher = higher + call('ZLEXCOUNT', seqs, '[' .. other .. '\0', '(' .. other .. '\1')
    end
  end
  for _, entry in ipairs(asked) do
    local count = higher
    for _, other in ipairs(lanes_ahead(seqs, band, lane)) do
      count = count + call('ZLEXCOUNT', seqs, '[' .. other .. '\0', '(' .. other .. '\0' .. sortable(entry.seq))
    end
    answer(entry.job, count, count * mean_of(service))
  end
end

-- Steps whose declared costs differ, of a user and service with nothing measured yet, all count as the first.
local function standing_of(service, user, lanes)
  local steps, first = 0, nil
  for _, lane in ipairs(lanes) do
    local at = lane_at(user, lane)
    if at and user[at + 1] > 0 then
      steps, first = steps + user[at + 1], first or lane
    end
  end
  if steps == 0 then
    return 0
  end
  local cost = false
  if not user[MEAN] and not service.mean then
    local suffix = first_in_line(service, first, user[ID])
    local job = sub(suffix, 18)
    cost = read_entry(job, call('HGET', ENTRIES, job)).cost
  end
  local estimate = estimate_of(service, user, cost)
  return steps, estimate, charge(estimate, user[WEIGHT])
end

local function mark_of(service, band, lanes, entry)
  local user, index = read_user(service, entry.user), 0
  local key = order_key(service, entry.rank, entry.seq) .. entry.job
  for _, lane in ipairs(lanes) do
    local line = line_of(lane, user[ID])
    index = index + call('ZLEXCOUNT', service.keys.line, '[' .. line, '(' .. line .. key)
  end
  local _, _, each = standing_of(service, user, lanes)
  if index == 0 and user[NEW + band] then
    return { tag = user[NEW + band] - MIDDLE, user = user[ID], job = entry.job }
  end
  return { tag = user[TAG + band] + index * each, user = user[ID], job = entry.job }
end

-- How many of a user's steps start before the mark; equal tags go by user id.
local function served_before(tag, user_id, each, steps, mark)
  if tag > mark.tag then
    return 0
  end
  local whole = floor((mark.tag - tag) / each)
  local on_the_mark = whole * each == mark.tag - tag
  local earlier = (on_the_mark and not before(user_id, mark.user)) and whole or whole + 1
  return math.min(steps, earlier)
end

-- The first of the sorted marks whose tag is greater; one past the last if none is.
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

local function fair_ahead(service, band, lane, asked, users, answer)
  local count, work, lanes, above = 0, 0, lanes_ahead(service.keys.line, band, lane), {}
  for higher = 0, band - 1 do
    above[#above + 1] = lanes_ahead(service.keys.line, higher, lane)
  end
  local marks = {}
  for i, entry in ipairs(asked) do
    marks[i] = mark_of(service, band, lanes, entry)
  end
  table.sort(marks, function(a, b) return a.tag < b.tag end)
  local counts, works, more, more_work = {}, {}, {}, {}
  for i = 1, #marks + 1 do
    counts[i], works[i], more[i], more_work[i] = 0, 0, 0, 0
  end
  local function add(tag, user_id, each, steps, estimate)
    if steps > 0 and tag <= marks[#marks].tag then
      -- Steps known to be before every mark from the i-th on are added once, at i; the others mark by mark.
      local all_before = first_after(marks, tag + (steps - 1) * each)
      counts[all_before], works[all_before] = counts[all_before] + steps, works[all_before] + steps * estimate
      for i = first_after(marks, tag - 1), all_before - 1 do
        local n = served_before(tag, user_id, each, steps, marks[i])
        more[i], more_work[i] = more[i] + n, more_work[i] + n * estimate
      end
    end
  end
  for _, user in ipairs(users) do
    for _, higher in ipairs(above) do
      local steps, estimate = standing_of(service, user, higher)
      if steps > 0 then
        count, work = count + steps, work + steps * estimate
      end
    end
    local steps, estimate, each = standing_of(service, user, lanes)
    local tag = user[TAG + band]
    if steps > 0 and user[NEW + band] then
      add(user[NEW + band] - MIDDLE, user[ID], each, 1, estimate)
      tag, steps = tag + each, steps - 1
    end
    add(tag, user[ID], each, steps, estimate)
  end
  for i, mark in ipairs(marks) do
    count, work = count + counts[i], work + works[i]
    answer(mark.job, count + more[i], work + more_work[i])
  end
end

local function running_work(service)
  local left = 0
  for _, stored in ipairs(call('HVALS', service.keys.leases)) do
    local _, _, _, _, _, granted, _, _, _, _, estimate = unpack_of(stored)
    left = left + math.max(0, estimate - math.max(0, now - granted))
  end
  return left
end

local function all_users(service)
  local users = {}
  each_stored_user(service, function(user_id, stored)
    users[#users + 1] = service.users[user_id] or user_from(user_id, stored)
  end)
  return users
end

local asked, jobs, rows = {}, {}, { 0 }
for i = 5, #ARGV do
  jobs[#jobs + 1] = ARGV[i]
end
for i, stored in ipairs(read_many(ENTRIES, jobs)) do
  if stored then
    local entry = read_entry(jobs[i], stored)
    local service = by_name[entry.service]
    local _, lane = where(service, entry.band, entry.rank, entry.region)
    asked[service] = asked[service] or {}
    asked[service][lane] = asked[service][lane] or {}
    table.insert(asked[service][lane], entry)
  end
end
for service, lanes in pairs(asked) do
  local running, users = running_work(service), not service.fifo and all_users(service)
  local slots = scope.pool_limit and math.min(service.limit, scope.pool_limit) or service.limit
  local function answer(job, count, work)
    local n = #rows
    rows[n + 1], rows[n + 2], rows[n + 3], rows[n + 4] = job, count + 1, work + running, slots
    rows[n + 5] = mean_of(service)
  end
  for lane, entries in pairs(lanes) do
    local band = tonumber(sub(lane, 1, 1))
    if service.fifo then
      fifo_ahead(service, band, lane, entries, answer)
    else
      fair_ahead(service, band, lane, entries, users, answer)
    end
  end
end
return rows
