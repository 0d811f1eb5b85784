-- The steps ahead in a band with groups. Same behaviour as dispatch/memory/group_positions.py. Within each group the steps
-- ahead are counted as in a band without groups; that number is the number of grants that the group gets first. Beside
-- other groups and users, a group counts like a user whose steps each take the mean time of its members' steps.

local function depth_of(id)
  return string.find(id, '/', 1, true) and 2 or 1
end

local function parent_of(node)
  return node[LANES] == '@' and node[GROUP] or ''
end

-- A group that has been parked since its first step came has no virtual time yet.
local function tag_of(node, band)
  return node[TAG + band] or of_groups().time(service, node, band)
end

-- The nodes by the id of their group ('': none), and the groups, teams first. A node is {record, steps, estimate, charge}.
local function nodes_of(users, band, lanes)
  local levels, ids, seen = { [''] = {} }, {}, {}
  local function add(node, steps, estimate, each)
    local parent = parent_of(node)
    levels[parent] = levels[parent] or {}
    table.insert(levels[parent], { node, steps, estimate, each })
    while parent ~= '' and not seen[parent] do
      seen[parent], ids[#ids + 1] = true, parent
      parent = parent_of(read_user(service, parent))
    end
  end
  for _, user in ipairs(users) do
    local steps, estimate, each = user_steps(service, user, lanes)
    if steps > 0 then
      add(user, steps, estimate, each)
    end
  end
  table.sort(ids, function(a, b)
    if depth_of(a) ~= depth_of(b) then
      return depth_of(a) > depth_of(b)
    end
    return before(a, b)
  end)
  local charges = {}
  for _, id in ipairs(ids) do
    local group, steps, work = read_user(service, id), 0, 0
    for _, node in ipairs(levels[id]) do
      steps, work = steps + node[2], work + node[2] * node[3]
    end
    local estimate = floor(work / steps)
    charges[id] = charge(estimate, group[WEIGHT])
    add(group, steps, estimate, charges[id])
  end
  return levels, ids, charges
end

-- The demand if of the steps ahead only those of a group's members count, as many as `ahead`.
local function demand_of_members(demand, ahead)
  local each = math.max(1, demand.steps - 1)
  return with_ahead(demand, ahead + 1, floor(ahead * demand.reserved / each), floor(ahead * demand.use / each))
end

-- What a step's own group means for its position, as values joined by NUL: path, steps ahead of members, limit (-1: none),
-- unused slots, remaining work of running steps in µs, debt in µs, µs until the group's rate allows the step.
local function describe(id, band, ahead, running, demand)
  local group = read_user(service, id)
  local limit = group[LANES + 1]
  local debt = group[NEW + band] and 0 or tag_of(group, band) - of_groups().time(service, group, band)
  local free = limit > 0 and math.max(0, limit - group[RUNNING]) or 0
  local texts = { sub(id, 2) }
  for i, number in ipairs({ ahead, limit > 0 and limit or -1, free, running[id] or 0, math.max(0, debt),
    demand and rates.group_wait(service, id, demand_of_members(demand, ahead)) or 0 }) do
    texts[i + 1] = format('%d', number)
  end
  return table.concat(texts, '\0')
end

local function running_of_groups(of_users)
  local running = {}
  for user_id, left in pairs(of_users) do
    of_groups().each(service, read_user(service, user_id), function(group)
      running[group[ID]] = (running[group[ID]] or 0) + left
    end)
  end
  return running
end

-- Calls visit(mark, count, work, groups) for every marked step.
local function ahead_in_groups(users, band, lanes, marks, of_users, visit)
  local levels, ids, charges = nodes_of(users, band, lanes)
  local marked, within, users_marks, running = {}, {}, {}, running_of_groups(of_users)
  for _, mark in ipairs(marks) do
    local parent = parent_of(read_user(service, mark.user))
    marked[parent] = marked[parent] or {}
    table.insert(marked[parent], mark)
    within[mark.job], users_marks[mark.job] = {}, mark
  end
  local function tallied(level, each_mark)
    local tally = tally_of(marked[level])
    for _, node in ipairs(levels[level]) do
      local record = node[1]
      tally.add_user(record[NEW + band], tag_of(record, band), record[ID], node[4], node[2], node[3])
    end
    tally.totals(each_mark)
  end
  for _, id in ipairs(ids) do
    if marked[id] then
      local group = read_user(service, id)
      local parent = parent_of(group)
      marked[parent] = marked[parent] or {}
      tallied(id, function(mark, count)
        local is_new = count == 0 and group[NEW + band]
        local groups = within[mark.job]
        groups[#groups + 1] = { id, count }
        users_marks[mark.job].newcomer = users_marks[mark.job].newcomer and is_new and true or false
        table.insert(marked[parent], {
          tag = is_new and group[NEW + band] - MIDDLE or tag_of(group, band) + count * charges[id],
          user = id, job = mark.job,
        })
      end)
    end
  end
  tallied('', function(mark, count, work_ahead)
    local texts, steps = {}, retries + higher + count
    local demand = rates and demand_of(service, users_marks[mark.job].cost, steps, work + work_ahead)
    for i = #within[mark.job], 1, -1 do
      local id, ahead = unpack(within[mark.job][i])
      texts[#texts + 1] = describe(id, band, ahead, running, demand)
    end
    visit(users_marks[mark.job], count, work_ahead, table.concat(texts, '\0'))
  end)
end
