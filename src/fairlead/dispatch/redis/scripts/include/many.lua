-- Grants many steps of one service at once. The outcome is the same as with one `pick` and `take` per step, but heads
-- are read once, and queues are written once.
--
-- A level is the order of the users and groups in a lane, or of those within a group: `ids` and `sort_keys` are the heads
-- that were read, `at` is the next of them, and `more` tells whether there are others. `again` and `again_keys` are those
-- that had a turn and wait for another, of which those from `first` to `sorted` are in order, and those behind, up to
-- `last`, are not yet; `least` is the first sort key of all of them. `quota` is the number of grants that the level is
-- expected to get, `each` that of one head.
--
--- @const HIGHEST 1e300
-- An empty list that takes four values without growing, in half the time
--- @const FOUR_SLOTS {nil,nil,nil,nil}

local function sorts_before(sort_key, id, other, other_id)
  return sort_key < other or (sort_key == other and before(id, other_id))
end

-- Let a user or group that has more waiting wait for another turn.
local function reinsert(level, node, sort_key)
  local last = level.last + 1
  level.last = last
  level.again[last] = node
  level.again_keys[last] = sort_key
  if sort_key < level.least then
    level.least = sort_key
  end
end

-- Put those that wait for another turn in order. Usually there is one, which belongs behind all others.
local function sort_again(level)
  local nodes, sort_keys, first = level.again, level.again_keys, level.first
  for at = level.sorted + 1, level.last do
    local sort_key, previous = sort_keys[at], at > first and sort_keys[at - 1]
    if previous and sort_key <= previous and sorts_before(sort_key, nodes[at][ID], previous, nodes[at - 1][ID]) then
      local node, low, high = nodes[at], first, at
      while low < high do
        local middle = floor((low + high) / 2)
        if sorts_before(sort_keys[middle], nodes[middle][ID], sort_key, node[ID]) then
          low = middle + 1
        else
          high = middle
        end
      end
      table.remove(nodes, at)
      table.remove(sort_keys, at)
      table.insert(nodes, high, node)
      table.insert(sort_keys, high, sort_key)
    end
  end
  level.sorted = level.last
end

-- A level with these heads, up to the first one of another band. Its sort keys are set by `read_sort_keys`.
local function new_level(prefix, quota, heads)
  local ids, id_at, first = FOUR_SLOTS, #prefix + 18, byte(heads[1])
  for i = 1, #heads do
    if byte(heads[i]) ~= first then
      break
    end
    ids[i] = sub(heads[i], id_at)
  end
  return { prefix = prefix, quota = quota, each = math.ceil(quota / #ids), ids = ids, sort_keys = FOUR_SLOTS, at = 1,
    again = FOUR_SLOTS, again_keys = FOUR_SLOTS, first = 1, sorted = 0, last = 0, least = HIGHEST, more = #ids >= quota }
end

-- The sort keys of these heads, which begin at `known` + 1. Records that were read have them as numbers; to convert the
-- text costs 0.2 µs each.
local function read_sort_keys(service, band, level, heads, known)
  local ids, sort_keys, users, key_at = level.ids, level.sort_keys, not service.fifo and service.users, #level.prefix + 2
  for i = known + 1, #ids do
    local node = users and users[ids[i]]
    if node then
      sort_keys[i] = node[NEW + band] or node[TAG + band] + MIDDLE
    else
      sort_keys[i] = tonumber(sub(heads[i - known], key_at, key_at + 15))
    end
  end
end

-- Read as many heads of a level again. None are written while steps are taken.
local function read_more(service, band, level)
  local ids, prefix, known, from = level.ids, level.prefix, #level.ids, '[' .. level.prefix .. '\0'
  local heads = call('ZRANGEBYLEX', service.keys.heads, from, '(' .. prefix .. '\1', 'LIMIT', known, known)
  for i = 1, #heads do
    ids[known + i] = sub(heads[i], #prefix + 18)
  end
  level.more = #heads == known
  read_users(service, ids)
  read_sort_keys(service, band, level, heads, known)
  if rates and rates.read_members then
    rates.read_members(service, ids)
  end
end

-- Take the next user or group out of a level; nil if there is none.
local function next_of(service, band, level)
  local at, least = level.at, level.least
  local id = level.ids[at]
  if not id and level.more then
    read_more(service, band, level)
    id = level.ids[at]
  end
  if id and level.sort_keys[at] < least then
    level.at = at + 1
    return service.users[id] or error('a user or group in the heads is not stored')
  elseif least == HIGHEST then
    return nil
  end
  if level.sorted < level.last then
    sort_again(level)
  end
  local first = level.first
  local returning = level.again[first]
  if id and level.sort_keys[at] == least and before(id, returning[ID]) then
    level.at = at + 1
    return service.users[id] or error('a user or group in the heads is not stored')
  end
  level.first, level.least = first + 1, level.again_keys[first + 1] or HIGHEST
  return returning
end

-- Read the heads within all groups of a level, as many as each is expected to need, and their records with one command.
local function open_groups(service, band, level, lane, levels)
  local members, opened = {}, {}
  for _, id in ipairs(level.ids) do
    if byte(id) == 1 and not levels[id] then
      local prefix = 'g' .. sub(id, 2) .. '\0' .. lane
      local first = call('ZRANGEBYLEX', service.keys.heads, '[' .. prefix .. '\0', '(' .. prefix .. '\1', 'LIMIT', '0',
        level.each)
      levels[id] = new_level(prefix, level.each, first[1] and first or error('a group has no member in the heads'))
      opened[id] = first
      for _, member in ipairs(levels[id].ids) do
        members[#members + 1] = member
      end
    end
  end
  read_users(service, members)
  for id, heads in pairs(opened) do
    read_sort_keys(service, band, levels[id], heads, 0)
  end
  if rates and rates.read_members and (rates.by_user or byte(members[1]) == 1) then
    rates.read_members(service, members)
  end
end

-- The user's next queued step, and the one after it if needed, as members of the queue. `ahead` caches steps read
-- earlier. Each read fetches as many steps as the user gets if all users get the same number.
local function next_steps(service, lane, user, waiting, each, ahead)
  local mine, at = ahead[user], 1
  if mine then
    at = ahead.at[user]
  end
  if not mine or not mine[at] or (service.fifo and waiting > 1 and not mine[at + 1]) then
    local id = user[ID]
    local queue = lane .. '\0' .. lengths[#id] .. id
    -- Open-ended: the user has this many steps, so another user's follow only if one was lost.
    mine, at = call('ZRANGEBYLEX', service.keys.line, '[' .. queue, '+', 'LIMIT', user[TAKEN] > 0 and user[TAKEN] or '0',
      waiting < each and waiting or each), 1
    if sub(mine[#mine] or '', 1, #queue) ~= queue then
      error('a step of a user is not in the queue')
    end
  end
  if each > 1 then
    ahead[user], ahead.at[user] = mine, at + 1
  end
  return mine[at], mine[at + 1]
end

-- Count a step of this user as taken, and charge it to the user and its groups, the first `count` of the path from the
-- outermost. Returns the user's charge.
local function take_first(service, band, lane, at, user, estimate, path, count)
  local charged = 0
  user[TAKEN], user[at + 1] = user[TAKEN] + 1, user[at + 1] - 1
  user[WAITING], user[RUNNING], user[CHANGED] = user[WAITING] - 1, user[RUNNING] + 1, true
  if not service.fifo then
    local weight, tag = user[WEIGHT], user[TAG + band]
    local times, cost = band < 2 and GROUP_TIMES + band or GROUP_TIMES + 1 + band, charge(estimate, weight)
    charged = cost
    if user[NEW + band] then
      user[NEW + band], tag = false, nil
    end
    user[TAG + band] = user[TAG + band] + cost
    for i = count, 1, -1 do
      local group = path[i]
      if tag then
        if tag < group[times] then
          drop_overtaken(service, band, group) -- now, because the time of the group goes back
        end
        group[times] = tag
      end
      if group[WEIGHT] ~= weight then
        weight = group[WEIGHT]
        cost = charge(estimate, weight)
      end
      tag = group[TAG + band]
      group[TAG + band] = tag + cost
      if group[NEW + band] then
        group[NEW + band], tag = false, nil
      end
      group[RUNNING] = group[RUNNING] + 1
      if not group[STALE] then
        mark_stale(service, group)
      end
    end
    if tag then
      service.vt[band] = tag
    end
  end
  if not user[STALE] then
    mark_stale(service, user)
  end
  if count > 0 and user[at + 1] == 0 then
    scope.groups().lower(service, user, lane)
  end
  if service.user_limit or user[PARKED] then
    park_or_unpark(service, user)
  end
  for i = count, 1, -1 do
    local limit = path[i][LANES + 1]
    if limit > 0 and path[i][RUNNING] >= limit then
      scope.groups().park_or_unpark(service, path[i])
    end
  end
  return charged
end

-- Returns the number of granted steps, and whether a rate keeps the next one from being granted.
local function take_in_band(service, band, heads, room, issue)
  local lane, fifo, users = UNBOUND[band], service.fifo, service.users
  local parks, read_first, plans = false, service.stored_costs and costs_of(service)[STATED] > 0, nil
  local take_rated = rates and service.rates and rates.take
  if take_rated then
    local needs_entries
    parks, needs_entries = rates.begin(service)
    read_first, plans = read_first or needs_entries, rates.state.q
  end
  local root, levels, path, ahead, full = new_level(lane, room, heads), NONE, {}, { at = {} }, false
  local left_out = {}
  read_users(service, root.ids)
  read_sort_keys(service, band, root, heads, 0)
  if parks then
    rates.read_members(service, root.ids)
  end
  local members, jobs, takers, estimates, charges, count = {}, {}, {}, {}, {}, 0
  local entries, masks, units, groups = NONE, NONE, NONE, NONE
  if take_rated then
    masks, units, groups = {}, {}, {}
  end
  if read_first then
    entries = {}
  end
  while count < room do
    local level, depth, user = root, 0, nil
    repeat
      local head_at = level.at
      local id = level.ids[head_at]
      if id and level.sort_keys[head_at] < level.least then
        level.at = head_at + 1
        user = users[id] or error('a user or group in the heads is not stored')
      else
        user = next_of(service, band, level)
      end
      local group = user and user[MEMBER_LANES] == '#'
      if group then
        depth = depth + 1
        path[depth] = user
        path[-depth] = level
        id = user[ID]
        if not levels[id] then
          levels = levels == NONE and {} or levels
          open_groups(service, band, level, lane, levels)
        end
        level = levels[id]
      end
    until not group
    if not user then
      if depth > 0 then
        error('a member of a group is not in the heads')
      end
      break
    end
    local at = user[LANES] == lane and LANES or user[MEMBER_LANES] == lane and MEMBER_LANES or lane_at(user, lane)
    local each = level.each
    local member, following = next_steps(service, lane, user, user[at + 1], fifo and each + 1 or each, ahead)
    local job_at = #lane + #user[ID] + 23
    local job, entry, cost, plan = sub(member, job_at), nil, nil, nil
    if read_first then
      entry = call('HGET', ENTRIES, job)
      local _, _, _, _, _, _, _, _, stated = cmsgpack.unpack_limit(entry, 8, 0)
      cost, plan = stated, plans and select(16, unpack_of(entry)) or nil
    end
    local mask, reserved, path_of_rate = 0, nil, nil
    if take_rated then
      mask, reserved, path_of_rate = take_rated(service, user, cost, plan)
    end
    if mask == nil then
      full = true
      break
    elseif not mask then
      -- A parked user gets no grant, so those that were left out may get another one.
      for i = 1, left_out and #left_out or 0, 3 do
        reinsert(left_out[i], left_out[i + 1], left_out[i + 2])
      end
      left_out = false
    else
      count = count + 1
      members[count] = member
      jobs[count] = job
      takers[count] = user
      local estimate = cost and estimate_of(service, user, cost) or user[MEAN] or service.mean or service.cost
      estimates[count] = estimate
      charges[count] = take_first(service, band, lane, at, user, estimate, path, depth)
      if read_first then
        entries[count] = entry
      end
      if mask > 0 then
        masks[count] = mask
        units[count] = reserved
        groups[count] = path_of_rate
      end
    end
    -- Put the user and its groups back. One with as many others ahead of it as there are grants left gets no further one.
    local node, left = user, room - count - 1
    while true do
      if node[at + 1] > 0 and not node[PARKED] then
        local sort_key = fifo and tonumber(sub(following, job_at - 16, job_at - 1))
          or node[NEW + band] or node[TAG + band] + MIDDLE
        local last = left_out and level.sort_keys[level.at + left]
        if not (last and last < sort_key) then
          local n = level.last + 1 -- as `reinsert`
          level.last = n
          level.again[n] = node
          level.again_keys[n] = sort_key
          if sort_key < level.least then
            level.least = sort_key
          end
        elseif parks then
          local n = #left_out
          left_out[n + 1] = level
          left_out[n + 2] = node
          left_out[n + 3] = sort_key
        end
      end
      if depth == 0 then
        break
      end
      node, level = path[depth], path[-depth]
      at = node[GROUP_LANES] == lane and GROUP_LANES or lane_at(node, lane)
      depth = depth - 1
    end
  end
  if take_rated then
    rates.finish()
  end
  local seqs, count_costs = {}, nil
  entries = read_first and entries or read_many(ENTRIES, jobs)
  for i = 1, count do
    local user, seq, _, _, offered, _, step, run, cost = takers[i], unpack_of(entries[i])
    user[TAKEN] = 0
    service.waiting[offered] = service.waiting[offered] - 1
    if fifo then
      seqs[i] = lane .. '\0' .. sortable(seq) .. jobs[i]
    end
    if cost then
      count_costs = count_costs or of_costs().count
      count_costs(service, lane, user[ID], -1, -cost)
    end
    issue(service, jobs[i], step, run, user, estimates[i], charges[i], band, false, cost, nil,
      masks[i] or false, units[i], groups[i])
  end
  call_many('ZREM', service.keys.line, members)
  call_many('HDEL', ENTRIES, jobs)
  call_many('ZREM', service.keys.seqs, seqs)
  if count > 0 and not fifo then
    if next(levels) and call('EXISTS', service.keys.idle) == 1 then
      for id, level in pairs(levels) do
        if level.at > 1 then
          drop_overtaken(service, band, users[id])
        end
      end
    end
    drop_overtaken(service, band)
  end
  return count, full, parks or next(levels)
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
      local count, full, parks = take_in_band(service, band, heads, room, issue)
      if full then
        return
      end
      room = room - count
      heads = NONE
      if parks or count > 0 and service.user_limit then
        refresh(service) -- a user that reached its limit is parked in the other bands too
      end
    end
  end
end
