-- Many steps of one service at once. The same outcome as one `pick` and `take` after the other, but the heads are read
-- once, and what leaves the line is written once.

local function stands_before(standing, user_id, other, other_id)
  return standing < other or (standing == other and before(user_id, other_id))
end

-- `again` are users that were granted something and wait on, from last to first, so that the first is at its end.
local function stand_again(again, user, standing)
  local low, high = 1, #again + 1
  while low < high do
    local middle = floor((low + high) / 2)
    local other = again[middle]
    if stands_before(other.standing, other.user[ID], standing, user[ID]) then
      high = middle
    else
      low = middle + 1
    end
  end
  table.insert(again, low, { standing = standing, user = user })
end

-- Of the heads that were found, those of the first band, in order: ids, and standings as numbers.
local function of_first_band(service, found)
  local ids, standings, first = {}, {}, byte(found[1])
  for i = 1, #found do
    if byte(found[i]) ~= first then
      break
    end
    ids[i], standings[i] = sub(found[i], 20), tonumber(sub(found[i], 4, 19))
  end
  read_users(service, ids)
  return ids, standings
end

-- The user's next step in line, and the one after it if that matters: as members there. `ahead` has those that were read
-- already: so many at once as each user gets if all get alike.
local function next_steps(service, lane, user, waiting, ahead)
  local mine, at = ahead[user], ahead.at[user]
  if not mine or not mine[at] or (service.fifo and waiting > 1 and not mine[at + 1]) then
    local line = '[' .. lane .. '\0' .. format('%04x', #user[ID]) .. user[ID]
    -- Open-ended: there are so many steps of this user, so no other's come before them.
    mine, at = call('ZRANGEBYLEX', service.keys.line, line, '+', 'LIMIT', user[TAKEN] > 0 and user[TAKEN] or '0',
      waiting < ahead.each and waiting or ahead.each), 1
  end
  if ahead.each > 1 then
    ahead[user], ahead.at[user] = mine, at + 1
  end
  return mine[at], mine[at + 1]
end

-- One step of this user leaves the line: its member there, its job, the estimate, the charge, and the standing that the
-- user has then, or nil if it waits for nothing more.
local function take_first(service, band, lane, user, ahead)
  local at = lane_at(user, lane)
  local member, following = next_steps(service, lane, user, user[at + 1], ahead)
  local job_at = #lane + #user[ID] + 23
  local job = sub(member, job_at)
  local estimate = user[MEAN] or service.mean
  if not estimate then
    estimate = estimate_of(service, user, read_entry(job, call('HGET', ENTRIES, job)).cost)
  end
  local charged, standing = 0, nil
  user[TAKEN], user[at + 1] = user[TAKEN] + 1, user[at + 1] - 1
  user[WAITING], user[RUNNING] = user[WAITING] - 1, user[RUNNING] + 1
  if not service.fifo then
    charged = charge(estimate, user[WEIGHT])
    move_back(service, user, band, charged)
    standing = user[TAG + band] + MIDDLE
  elseif user[at + 1] > 0 then
    standing = tonumber(sub(following, job_at - 16, job_at - 1))
  end
  mark_stale(service, user)
  park_or_unpark(service, user)
  if user[at + 1] == 0 or user[PARKED] then
    standing = nil
  end
  return member, job, estimate, charged, standing
end

local function take_in_band(service, band, found, room, issue)
  local lane, ids, standings = UNBOUND[band], of_first_band(service, found)
  local members, jobs, takers, estimates, charges = {}, {}, {}, {}, {}
  local at, again, count = 1, {}, 0
  local ahead = { each = math.ceil(room / #ids) + (service.fifo and 1 or 0), at = {} }
  while count < room do
    local id, rival, user = ids[at], again[#again], nil
    if rival and not (id and stands_before(standings[at], id, rival.standing, rival.user[ID])) then
      user, again[#again] = rival.user, nil
    elseif id then
      user, at = service.users[id], at + 1
    else
      break
    end
    count = count + 1
    local standing
    members[count], jobs[count], estimates[count], charges[count], standing = take_first(service, band, lane, user, ahead)
    takers[count] = user
    -- Who then stands behind as many others as there is room left does not get another turn.
    local last = standings[at + room - count - 1]
    if standing and not (last and last < standing) then
      stand_again(again, user, standing)
    end
  end
  local seqs, entries = {}, read_many(ENTRIES, jobs)
  for i = 1, count do
    local user, seq, _, _, offered, _, step, run = takers[i], unpack_of(entries[i])
    user[TAKEN] = 0
    service.waiting[offered] = service.waiting[offered] - 1
    if service.fifo then
      seqs[i] = lane .. '\0' .. sortable(seq) .. jobs[i]
    end
    issue(service, jobs[i], step, run, user, estimates[i], charges[i], band, false)
  end
  call_many('ZREM', service.keys.line, members)
  call_many('HDEL', ENTRIES, jobs)
  call_many('ZREM', service.keys.seqs, seqs)
  if count > 0 and not service.fifo then
    drop_overtaken(service, band)
  end
  return count
end

local function take_many(service, bands, room, issue)
  if not scope.open or service.paused then
    return
  end
  room = math.min(room, free_slots(service))
  local found = NONE
  for _, band in ipairs(service.fifo and FIFO_BANDS or bands) do
    if room <= 0 then
      return
    end
    if not found[1] or band_of(found[1]) < band then
      -- Of this band or the first that has any: the next ones need not be asked for.
      found = call('ZRANGEBYLEX', service.keys.heads, '[' .. band, '+', 'LIMIT', '0', room)
    end
    if not found[1] then
      return
    elseif band_of(found[1]) == band then
      local count = take_in_band(service, band, found, room, issue)
      room = room - count
      found = NONE
      if count > 0 and service.user_limit then
        refresh(service) -- who is at its limit now is set aside in the bands to come as well
      end
    end
  end
end
