-- Groups of users. Same behaviour as dispatch/memory/groups.py. Included in a function of include/queues.lua, so that
-- these functions are created only for services with groups.
--
-- A user in a group has a first lane named `@`, with the id of the group: byte 1 and the group's path. The record of a
-- group is stored like that of a user, under its id. Its WAITING is the number of users and teams in it; its lanes count
-- the members that have a head there. Its first three lanes are `@` with its limit (0: none) and the group that it is in
-- (false: none), and two `#` with the virtual times of its members in bands 0 to 3. The heads and idle members of a
-- group have the prefix `g`, its path, and NUL. FIFO services ignore groups.

-- The group that a user or group is in, or false.
local function parent_of(service, node)
  local id = not service.fifo and node[LANES] == '@' and node[GROUP]
  if not id then
    return false
  end
  return service.users[id] or read_user(service, id) or error('the group of a user is not stored')
end

local function vt_at(band)
  return band < 2 and GROUP_TIMES + band or GROUP_TIMES + 1 + band
end

local function time(service, node, band)
  local group = parent_of(service, node)
  if group then
    return group[vt_at(band)]
  end
  return service.vt[band]
end

local function set_time(service, node, band, tag)
  local group = parent_of(service, node)
  if group then
    group[vt_at(band)] = tag
    group[CHANGED] = true
  else
    service.vt[band] = tag
  end
end

-- The index of the node's first lane, and the prefix of its heads.
local function heads_of(service, node)
  local id = not service.fifo and node[LANES] == '@' and node[GROUP]
  return node[MEMBER_LANES] == '#' and GROUP_LANES or MEMBER_LANES, id and heads_prefix(id) or ''
end

-- The user that is next in a lane within the group `id`, and the sort keys and ids on the way to that user.
local function next_user(service, lane, id)
  local order = ''
  while sub(id, 1, 1) == '\1' do
    local prefix = 'g' .. sub(id, 2) .. '\0' .. lane
    local first = call('ZRANGEBYLEX', service.keys.heads, '[' .. prefix .. '\0', '(' .. prefix .. '\1', 'LIMIT', '0', '1')[1]
    if not first then
      error('a member of a group is not in the heads')
    end
    id, order = sub(first, #prefix + 18), order .. '\0' .. sub(first, #prefix + 2)
  end
  return id, order
end

-- Make a node active in a lane, and the groups that it is in. A group enters the band when it becomes active in any of
-- the band's lanes.
local function raise(service, node, lane)
  local group = parent_of(service, node)
  if not group then
    return
  end
  local at, enters = lane_at(group, lane), not waits(group, band_of(lane))
  group[CHANGED] = true
  if at then
    group[at + 1] = group[at + 1] + 1
  else
    at = #group + 1
    group[at], group[at + 1], group[at + 2] = lane, 1, false
  end
  if group[at + 1] == 1 then
    mark_stale(service, group)
    if not group[PARKED] then
      if enters then
        enter(service, group, band_of(lane))
      end
      raise(service, group, lane)
    end
  end
end

-- Make a node inactive in a lane, and its group, if it was the last. `group` is the group if the node has left it.
local function lower(service, node, lane, group)
  group = group or parent_of(service, node)
  if not group then
    return
  end
  local at = lane_at(group, lane)
  group[CHANGED] = true
  group[at + 1] = group[at + 1] - 1
  if group[at + 1] == 0 then
    mark_stale(service, group)
    if not group[PARKED] then
      lower(service, group, lane)
    end
  end
end

local function each_lane(service, node, change)
  for at = heads_of(service, node), #node, 3 do
    if node[at + 1] > 0 then
      change(service, node, node[at])
    end
  end
end

-- A node was parked or unparked.
local function park_changed(service, node)
  each_lane(service, node, node[PARKED] and lower or raise)
end

local function park_or_unpark_group(service, group)
  local limit, was = group[LANES + 1], group[PARKED]
  -- A number is the time until which the group is parked because of its rate.
  local parked = type(was) == 'number' and was > now and was or limit > 0 and group[RUNNING] >= limit
  if parked == was then
    return
  end
  group[PARKED] = parked
  mark_stale(service, group)
  for band = 0, 3 do
    if not parked and waits(group, band) then
      enter(service, group, band)
    end
  end
  if (not was) ~= (not parked) then
    park_changed(service, group)
  end
end

local function each_group(service, node, visit)
  local group = parent_of(service, node)
  while group do
    visit(group)
    group = parent_of(service, group)
  end
end

local function park_or_unpark_groups(service, user)
  local group = parent_of(service, user)
  while group do
    park_or_unpark_group(service, group)
    group = parent_of(service, group)
  end
end

local function count_running(service, user, more)
  local group = parent_of(service, user)
  while group do
    group[RUNNING], group[CHANGED] = group[RUNNING] + more, true
    group = parent_of(service, group)
  end
  park_or_unpark_groups(service, user)
end

-- Charge a grant to the groups of a user.
local function charge_groups(service, user, band, estimate)
  local group = parent_of(service, user)
  while group do
    move_back(service, group, band, charge(estimate, group[WEIGHT]))
    mark_stale(service, group)
    group = parent_of(service, group)
  end
end

-- Settle the charges of the user's groups to the slot time that a call used (nil: nothing ran), and park or unpark the
-- user and its groups. `estimate` is false if the call was not charged, because it was restored or granted in FIFO order.
-- `difference` is that between what such a call is charged at this weight, and what it was.
local function released(service, user, band, estimate, real, weight, difference)
  local id, users, limited = not service.fifo and user[GROUP], service.users, false
  while id do
    local group = users[id] or read_user(service, id) or error('the group of a user is not stored')
    if group[WEIGHT] ~= weight then
      weight = group[WEIGHT]
      difference = (real and charge(real, weight) or 0) - (estimate and charge(estimate, weight) or 0)
    end
    group[RUNNING], group[CHANGED] = group[RUNNING] - 1, true
    if difference ~= 0 then
      group[TAG + band] = (group[TAG + band] or 0) + difference
      if not group[STALE] then
        mark_stale(service, group)
      end
      if difference > 0 then
        group[NEW + band] = false
      end
    end
    limited = limited or group[PARKED] or group[LANES + 1] > 0
    id = group[GROUP]
  end
  if service.user_limit or user[PARKED] then
    park_or_unpark(service, user)
  end
  if limited then
    park_or_unpark_groups(service, user)
  end
end

-- A user or group was forgotten.
local function left(service, node)
  if node[MEMBER_LANES] == '#' then
    local prefix = 'g' .. sub(node[ID], 2) .. '\0'
    call('ZREMRANGEBYLEX', service.keys.idle, '[' .. prefix, '(' .. sub(prefix, 1, -2) .. '\1')
  end
  local group = parent_of(service, node)
  if group then
    group[WAITING] = group[WAITING] - 1
    group[CHANGED] = true
    forget_if_idle(service, group)
  end
end

-- Create a group, and the organisation that it is in, unless they exist. `rules` has the weights and limits (false:
-- none) from the outermost group.
local function create(service, path, rules, level)
  local id = '\1' .. path
  if read_user(service, id) then
    return
  end
  local outer = string.match(path, '^(.*)/[^/]*$')
  service.users[id] = { id, false, true, 0, rules[2 * level - 1] or 1, 0, 0, false, false, false, false, false, false,
    false, false, false, false, '@', rules[2 * level] or 0, outer and '\1' .. outer or false, '#', 0, 0, '#', 0, 0 }
  if outer then
    create(service, outer, rules, level - 1)
    local group = user_of(service, '\1' .. outer)
    group[WAITING] = group[WAITING] + 1
  end
end

local function set_group(user, id)
  if user[LANES] == '@' then
    for _ = 1, 3 do
      table.remove(user, LANES)
    end
  end
  if id then
    table.insert(user, LANES, id)
    table.insert(user, LANES, 0)
    table.insert(user, LANES, '@')
  end
end

-- Remove a user's heads at once, because their names are about to change.
local function remove_heads(service, user)
  local first, prefix = LANES, ''
  if user[LANES] == '@' then
    first, prefix = heads_of(service, user)
  end
  for at = first, #user, 3 do
    if user[at + 2] then
      call('ZREM', service.keys.heads, prefix .. user[at] .. '\0' .. user[at + 2] .. user[ID])
      user[at + 2] = false
    end
  end
  mark_stale(service, user)
end

-- Put a user, with everything that it has waiting and running, into the group of this path (nil: into none). The user's
-- debt among the members of a group is kept.
local function place(service, user, path, rules)
  local old, new = user[LANES] == '@' and user[GROUP], path and '\1' .. path or false
  if old == new then
    return
  end
  if service.fifo then
    user[CHANGED] = true
    set_group(user, new)
    return
  end
  remove_heads(service, user)
  local times, was, was_in = {}, old and parent_of(service, user), {}
  for band = 0, 3 do
    times[band] = old and time(service, user, band) or service.vt[band]
  end
  if old then
    each_group(service, user, function(group)
      group[RUNNING], group[CHANGED] = group[RUNNING] - user[RUNNING], true
      was_in[#was_in + 1] = group
    end)
  end
  if path then
    create(service, path, rules, string.find(path, '/', 1, true) and 2 or 1)
    local group = user_of(service, new)
    group[WAITING] = group[WAITING] + 1
  end
  set_group(user, new)
  -- The groups that the user leaves are unparked last: an organisation that the user stays in is never without it.
  if new then
    count_running(service, user, user[RUNNING])
  end
  for band = 0, 3 do
    if user[TAG + band] then
      local from = new and time(service, user, band) or service.vt[band]
      user[TAG + band] = from + math.max(0, user[TAG + band] - times[band])
    end
  end
  if not user[PARKED] then
    local lanes = new and MEMBER_LANES or LANES
    for _, change in ipairs({ new and raise or false, was and lower or false }) do
      for at = lanes, change and #user or 0, 3 do
        if user[at + 1] > 0 then
          change(service, user, user[at], change == lower and was)
        end
      end
    end
  end
  for _, group in ipairs(was_in) do
    park_or_unpark_group(service, group)
  end
  if was then
    was[WAITING] = was[WAITING] - 1
    was[CHANGED] = true
    forget_if_idle(service, was)
  end
end
