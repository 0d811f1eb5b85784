-- Many steps of one service at once. The same outcome as one `pick` and `take` after the other, but the heads are read
-- once, and what leaves the line is written once: most of what a claim costs is the number of calls it makes.

-- The next user: the first of those read that was not granted anything yet, or of those that were and wait again.
local function next_user(listed, at, again)
  local first, other = listed[at], again[#again]
  if first and other then
    local earlier_first = first.standing < other.standing
      or (first.standing == other.standing and before(first.user.id, other.user.id))
    if earlier_first then
      return first, at + 1
    end
  elseif first then
    return first, at + 1
  end
  again[#again] = nil
  return other, at
end

-- `again` is sorted from last to first, so that the first is at its end.
local function stand_again(again, user, standing)
  local low, high = 1, #again + 1
  while low < high do
    local middle = floor((low + high) / 2)
    local other = again[middle]
    if other.standing < standing or (other.standing == standing and before(other.user.id, user.id)) then
      high = middle
    else
      low = middle + 1
    end
  end
  table.insert(again, low, { standing = standing, user = user })
end

-- The users at the head of a lane, at most so many, with their standing as a number.
local function listed_heads(service, lane, count)
  local found = call('ZRANGEBYLEX', service.keys.heads, '[' .. lane .. '\0', '(' .. lane .. '\1', 'LIMIT', 0, count)
  local listed, ids = {}, {}
  for i, member in ipairs(found) do
    ids[i] = sub(member, 20)
    listed[i] = { standing = tonumber(sub(member, 4, 19)), id = ids[i], user = false }
  end
  read_users(service, ids)
  for _, head_of_lane in ipairs(listed) do
    head_of_lane.user = service.users[head_of_lane.id]
  end
  return listed
end

-- One step of this user: its member in the line, its job, and the standing that the user then has.
local function take_first(service, band, lane, user)
  local line = line_of(lane, user.id)
  local steps = call('ZRANGEBYLEX', service.keys.line, '[' .. line, '(' .. line .. ':', 'LIMIT', user.taken, 2)
  local job = sub(steps[1], #line + 18)
  local estimate = user.mean or service.mean
  if not estimate then
    estimate = estimate_of(service, user, read_entry(job, call('HGET', ENTRIES, job)).cost)
  end
  local charged, standing = 0, nil
  if service.fifo then
    standing = steps[2] and tonumber(sub(steps[2], #line + 2, #line + 17))
  else
    local tag = user.tags[band]
    service.vt[band] = math.max(service.vt[band], tag)
    charged = charge(estimate, user.weight)
    user.tags[band] = tag + charged
    standing = tag + charged + MIDDLE
  end
  user.taken = user.taken + 1
  user.lanes[lane][1] = user.lanes[lane][1] - 1
  user.waiting, user.running = user.waiting - 1, user.running + 1
  user.stale, user.changed = true, true
  park_or_unpark(service, user)
  if user.lanes[lane][1] == 0 or user.parked then
    standing = nil
  end
  return { member = steps[1], job = job, user = user, estimate = estimate, charged = charged }, standing
end

local function take_in_band(service, band, room, taken, issue)
  local lane = band .. '-'
  local listed, at, again, grants, members, jobs = listed_heads(service, lane, room), 1, {}, {}, {}, {}
  while #grants < room do
    local chosen
    chosen, at = next_user(listed, at, again)
    if not chosen then
      break
    end
    local grant, standing = take_first(service, band, lane, chosen.user)
    grants[#grants + 1], members[#members + 1], jobs[#jobs + 1] = grant, grant.member, grant.job
    taken[#taken + 1] = grant.job
    if standing then
      stand_again(again, chosen.user, standing)
    end
  end
  local seqs = {}
  for i, stored in ipairs(read_many(ENTRIES, jobs)) do
    local grant, entry = grants[i], read_entry(jobs[i], stored)
    grant.user.taken = 0
    service.waiting[entry.band] = service.waiting[entry.band] - 1
    seqs[i] = service.fifo and lane .. '\0' .. sortable(entry.seq) .. entry.job or nil
    issue(service, entry, grant.user, grant.estimate, grant.charged, band)
  end
  call_many('ZREM', service.keys.line, members)
  call_many('ZREM', service.keys.seqs, seqs)
  if #grants > 0 and not service.fifo then
    drop_overtaken(service, band)
  end
  return #grants
end

local function take_many(service, bands, room, taken, issue)
  if not scope.open or service.paused then
    return
  end
  room = math.min(room, free_slots(service))
  for _, band in ipairs(service.fifo and FIFO_BANDS or bands) do
    if room > 0 then
      room = room - take_in_band(service, band, room, taken, issue)
    end
  end
end
