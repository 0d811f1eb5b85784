-- Grants many steps of one service at once. The outcome is the same as with one `pick` and `take` per step, but heads
-- are read once, and queues are written once.

local function sorts_before(sort_key, user_id, other, other_id)
  return sort_key < other or (sort_key == other and before(user_id, other_id))
end

-- Insert a user that was granted a step and has more waiting into `again`, which is sorted in descending order so that
-- the next user is at the end.
local function reinsert(again, user, sort_key)
  local low, high = 1, #again + 1
  while low < high do
    local middle = floor((low + high) / 2)
    local other = again[middle]
    if sorts_before(other.sort_key, other.user[ID], sort_key, user[ID]) then
      high = middle
    else
      low = middle + 1
    end
  end
  table.insert(again, low, { sort_key = sort_key, user = user })
end

-- Returns the users of the first band among these heads, in order: their ids, and their sort keys as numbers. Nil if there
-- is a group among them.
local function of_first_band(service, heads)
  local ids, sort_keys, first = {}, {}, byte(heads[1])
  for i = 1, #heads do
    if byte(heads[i]) ~= first then
      break
    elseif byte(heads[i], 20) == 1 then
      return nil
    end
    ids[i], sort_keys[i] = sub(heads[i], 20), tonumber(sub(heads[i], 4, 19))
  end
  read_users(service, ids)
  return ids, sort_keys
end

-- The user's next queued step, and the one after it if needed, as members of the queue. `ahead` caches steps read
-- earlier. Each read fetches as many steps as the user gets if all users get the same number.
local function next_steps(service, lane, user, waiting, ahead)
  local mine, at = ahead[user], ahead.at[user]
  if not mine or not mine[at] or (service.fifo and waiting > 1 and not mine[at + 1]) then
    local queue = '[' .. lane .. '\0' .. format('%04x', #user[ID]) .. user[ID]
    -- Open-ended: the user has this many steps, so another user's follow only if one was lost.
    mine, at = call('ZRANGEBYLEX', service.keys.line, queue, '+', 'LIMIT', user[TAKEN] > 0 and user[TAKEN] or '0',
      waiting < ahead.each and waiting or ahead.each), 1
    if sub(mine[#mine] or '', 1, #queue - 1) ~= sub(queue, 2) then
      error('a step of a user is not in the queue')
    end
  end
  if ahead.each > 1 then
    ahead[user], ahead.at[user] = mine, at + 1
  end
  return mine[at], mine[at + 1]
end

-- Take one step of this user. Returns its member, its job, the estimate, the charge, and the user's new sort key, or
-- nil if nothing more waits.
local function take_first(service, band, lane, user, ahead)
  local at = lane_at(user, lane)
  local member, following = next_steps(service, lane, user, user[at + 1], ahead)
  local job_at = #lane + #user[ID] + 23
  local job = sub(member, job_at)
  local stated = service.stored_costs and costs_of(service)[STATED] > 0
  local estimate = estimate_of(service, user, stated and read_entry(job, call('HGET', ENTRIES, job)).cost)
  local charged, sort_key = 0, nil
  user[TAKEN], user[at + 1] = user[TAKEN] + 1, user[at + 1] - 1
  user[WAITING], user[RUNNING] = user[WAITING] - 1, user[RUNNING] + 1
  if not service.fifo then
    charged = charge(estimate, user[WEIGHT])
    move_back(service, user, band, charged)
    sort_key = user[TAG + band] + MIDDLE
  elseif user[at + 1] > 0 then
    sort_key = tonumber(sub(following, job_at - 16, job_at - 1))
  end
  mark_stale(service, user)
  park_or_unpark(service, user)
  if user[at + 1] == 0 or user[PARKED] then
    sort_key = nil
  end
  return member, job, estimate, charged, sort_key
end

local function take_in_band(service, band, heads, room, issue)
  local lane, ids, sort_keys = UNBOUND[band], of_first_band(service, heads)
  if not ids then
    local count, chosen = 0, pick_unbound(service, { band })
    while chosen do
      local entry, user, estimate, charged = take(service, chosen, taken)
      issue(service, entry.job, entry.step, entry.run, user, estimate, charged, band, false, entry.cost, entry.plan)
      count = count + 1
      chosen = count < room and pick_unbound(service, { band })
    end
    return count
  end
  local members, jobs, takers, estimates, charges = {}, {}, {}, {}, {}
  local at, again, count = 1, {}, 0
  local ahead = { each = math.ceil(room / #ids) + (service.fifo and 1 or 0), at = {} }
  while count < room do
    local id, returning, user = ids[at], again[#again], nil
    if returning and not (id and sorts_before(sort_keys[at], id, returning.sort_key, returning.user[ID])) then
      user, again[#again] = returning.user, nil
    elseif id then
      user, at = service.users[id], at + 1
    else
      break
    end
    count = count + 1
    local sort_key
    members[count], jobs[count], estimates[count], charges[count], sort_key = take_first(service, band, lane, user, ahead)
    takers[count] = user
    -- A user with as many users ahead of it as there are grants left gets no further grant.
    local last = sort_keys[at + room - count - 1]
    if sort_key and not (last and last < sort_key) then
      reinsert(again, user, sort_key)
    end
  end
  local seqs, entries = {}, read_many(ENTRIES, jobs)
  for i = 1, count do
    local user, seq, _, _, offered, _, step, run, cost, _, _, _, _, _, _, _, plan = takers[i], unpack_of(entries[i])
    user[TAKEN] = 0
    service.waiting[offered] = service.waiting[offered] - 1
    if service.fifo then
      seqs[i] = lane .. '\0' .. sortable(seq) .. jobs[i]
    end
    if cost then
      count_costs(service, lane, user[ID], -1, -cost)
    end
    issue(service, jobs[i], step, run, user, estimates[i], charges[i], band, false, cost, plan)
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
  local heads = NONE
  for _, band in ipairs(service.fifo and FIFO_BANDS or bands) do
    if room <= 0 then
      return
    end
    if not heads[1] or band_of(heads[1]) < band then
      -- Reads the heads of this band or of the next one that has any, so that empty bands are skipped.
      heads = call('ZRANGEBYLEX', service.keys.heads, '[' .. band, '(4', 'LIMIT', '0', room)
    end
    if not heads[1] then
      return
    elseif band_of(heads[1]) == band then
      local count = take_in_band(service, band, heads, room, issue)
      room = room - count
      heads = NONE
      if count > 0 and service.user_limit then
        refresh(service) -- a user that reached its limit is parked in the other bands too
      end
    end
  end
end
