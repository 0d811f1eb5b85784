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

-- One step of this user leaves the line: its member there, its job, the estimate, the charge, and the standing that the
-- user has then, or nil if it waits for nothing more.
local function take_first(service, band, lane, user)
  local at, id = lane_at(user, lane), user[ID]
  local line, length = '[' .. lane .. '\0' .. format('%04x', #id) .. id, #lane + 5 + #id
  -- Open-ended: there is a step of this user, so no other's comes first.
  local steps = call('ZRANGEBYLEX', service.keys.line, line, '+', 'LIMIT', user[TAKEN] > 0 and user[TAKEN] or '0',
    service.fifo and '2' or '1')
  local job = sub(steps[1], length + 18)
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
    standing = tonumber(sub(steps[2], length + 2, length + 17))
  end
  mark_stale(service, user)
  park_or_unpark(service, user)
  if user[at + 1] == 0 or user[PARKED] then
    standing = nil
  end
  return steps[1], job, estimate, charged, standing
end

local function take_in_band(service, band, found, room, issue)
  local lane, ids, standings = UNBOUND[band], of_first_band(service, found)
  local members, jobs, takers, estimates, charges = {}, {}, {}, {}, {}
  local at, again, count = 1, {}, 0
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
    members[count], jobs[count], estimates[count], charges[count], standing = take_first(service, band, lane, user)
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
