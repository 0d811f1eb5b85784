-- What claims do not need of rates: changes of the rules, restored calls, and queries. Included in a function of
-- include/rates.lua, and created when the first of these is looked up.

-- µs until `missing` requests (`at` 1) or units (`at` 2) are free: what is freed is used at once, and is free again
-- after `per`. What is `taken` beyond `most`, by a step larger than the window or before the rate was lowered, is
-- not used again.
local function freed(window, missing, taken, most, at)
  local whole = floor(math.max(0, missing - 1 - math.max(0, taken - most)) / most)
  local rest = missing - 1 - whole * most
  unfold(window)
  for entry = W_FIRST, #window, 3 do
    rest = rest - window[entry + at]
    if rest < 0 then
      return whole * window[W_PER] + math.max(0, window[entry] - now)
    end
  end
  return (whole + 1) * window[W_PER]
end

-- The later of two times: when the window has the units, if each call before uses what is expected; and when enough
-- calls have ended, because until then each keeps all that it has reserved.
local function wait_for_units(window, demand, duration)
  local most, held, waits, ahead = window[W_UNITS], window[W_OPEN_UNITS], 0, demand.steps - 1
  local own, own_use = math.max(1, math.min(demand.own, most)), math.max(1, math.min(demand.own_use, most))
  local reserved, use = math.min(demand.reserved, ahead * most), math.min(demand.use, ahead * most)
  local counted, running = window[W_USED_UNITS] - held, held
  if demand.mean then
    running = math.min(held, demand.scale and floor(held * demand.scale)
      or window[W_OPEN] * math.max(1, math.min(demand.mean, most)))
  end
  local taken = counted + running
  local missing = taken + use + own - most
  if missing > 0 then
    local each = math.max(1, floor((reserved + own) / demand.steps))
    local each_use = math.max(1, floor((use + own_use) / demand.steps))
    -- A step that does not fit keeps all others waiting, so the window is full with a whole number of them. One that is
    -- due to fit exactly, but for a rounded mean, counts.
    local full = math.min(most, math.max(1, floor((most + floor(most / 100)) / each)) * each)
    waits = freed(window, missing, taken, math.max(1, math.min(most, full - each + each_use)), 2)
  end
  local left = math.max(0, most - counted)
  local over = held + reserved + own - left
  if not demand.mean or over <= 0 or duration <= 0 then
    return waits
  end
  reserved, use = reserved + own, use + own_use
  local steady = floor(most * (reserved / (reserved + use * (math.max(0, window[W_PER] - duration) / duration))))
  local room = math.max(own, steady, left - floor(over * (use / reserved) / 2))
  return math.max(waits, floor(duration * (over / room)))
end

-- µs until the step of this demand fits. `duration` is how long calls take.
local function window_wait(window, demand, duration)
  local waits = window[W_REST] > 0 and window[W_REST] - now or 0
  local missing = window[W_USED] + demand.steps - window[W_REQUESTS]
  if window[W_REQUESTS] < MIDDLE and missing > 0 then
    waits = math.max(waits, freed(window, missing, window[W_USED], window[W_REQUESTS], 1))
  end
  if window[W_UNITS] < MIDDLE then
    waits = math.max(waits, wait_for_units(window, demand, duration))
  end
  return math.max(0, waits)
end

local function row_of(rows, kind, name, window)
  if counts(window) or window[W_REST] > 0 then
    rows[#rows + 1] = { kind, name, window[W_REQUESTS], window[W_UNITS], window[W_PER], window[W_USED],
      window[W_USED_UNITS], window_due(window, 0) or -1, window[W_REST] }
  end
end

-- The paths of all groups with a rate.
local function rated_paths()
  local paths = {}
  for _, field in ipairs(state.g and call('HKEYS', META) or NONE) do
    paths[#paths + 1] = string.match(field, '^rate:(.*)$')
  end
  return paths
end

local function member_window(service, id)
  return members and members.window(service, id)
end

-- Call `visit` with each window of a call's user and groups, its id, and whether the call counts there: in that of the user
-- if `of_user`.
local function visit_members(service, user_id, of_user, path, visit)
  local groups = path and members.rated_on_path(service, path) or NONE
  for i = (of_user or by_user) and 0 or 1, #groups do
    local id = groups[i] or user_id
    local found = members.window(service, id)
    if found then
      visit(found, id, of_user or i > 0)
    end
  end
end

local others = {
  rates_of = rates_of, take_rate = take_rate, new_window = new_window, window_wait = window_wait,
  member_window = member_window, rated_paths = rated_paths,

  changed = function()
    pack_now = true
  end,

  -- The rate of the group of this path is now another one, or false.
  change_group = function(path, rate)
    if members then
      members.group_rates[path] = rate
    end
  end,

  -- The call of a grant was sent. Returns when.
  sent = function(service, user_id, region, mask, units, granted, after, path)
    local sent_at = math.min(now, granted + after)
    local function count(window)
      close(window, units)
      add(window, sent_at + margin(window), 1, units)
    end
    for i = 1, collect(service, region, mask) do
      count(windows[i])
    end
    if members then
      visit_members(service, user_id, mask % 16 >= 8, path, function(window, id, counts_it)
        local node = read_user(service, id)
        if counts_it then
          count(window)
        end
        members.changed(window, node)
        if node and node[PARKED] == 0 then
          members.reconsider(service, node)
        end
      end)
    end
    touch(service)
    return sent_at
  end,

  -- Count a call that ended before the queue was rebuilt.
  spent = function(service, user_id, region, ended_at, units, plan, path)
    local of = service.rates
    for i = 1, collect(service, region, mask_of(service, region)) do
      add(windows[i], ended_at, 1, units)
    end
    if members and of then
      local groups = path and members.rated_on_path(service, path) or NONE
      local of_user = (of.u or state.q) and members.take_plan(service, user_id, plan, members.window(service, user_id))
      for i = 1, #groups do
        members.window_of_group(service, groups[i])
      end
      visit_members(service, user_id, of_user and true, path, function(window, id, counts_it)
        if counts_it then
          add(window, ended_at, 1, units)
        end
        members.score(service, window, id)
      end)
    end
  end,

  -- µs until the rate of a group allows the step of this demand.
  group_wait = function(service, id, demand)
    local found = service.rates and members and members.group_rate(sub(id, 2)) and members.window(service, id)
    return found and window_wait(found, demand, service.mean or service.cost) or 0
  end,

  -- What the upstream said about its limits.
  rest = function(service, region, seconds, requests, units)
    local of = rates_of(service)
    local window, until_then = of.o, now + seconds
    if region then
      window = of.r[region] or new_window()
      of.r[region] = window
    end
    pack_now = true
    touch(service)
    if not requests and not units then
      window[W_REST] = math.max(window[W_REST], until_then)
      return
    end
    local more = requests and window[W_REQUESTS] < MIDDLE and math.max(0, room(window) - requests) or 0
    local left = math.max(0, window[W_UNITS] - window[W_USED_UNITS])
    local more_units = units and window[W_UNITS] < MIDDLE and math.max(0, left - units) or 0
    if more > 0 or more_units > 0 then
      add(window, until_then - window[W_PER], more, more_units)
    end
  end,

  uses = function(service)
    local rows, of = {}, service.rates
    if of then
      row_of(rows, 'service', service.name, of.o)
      for i = 1, #service.regions, 2 do
        local region = service.regions[i]
        if of.r[region] then
          row_of(rows, 'region', region, of.r[region])
        end
      end
      if state.p and scope.pool_limit then
        row_of(rows, 'pool', '', state.p)
      end
      local paths = rated_paths()
      table.sort(paths, before)
      for _, path in ipairs(paths) do
        local found = member_window(service, '\1' .. path)
        if found then
          row_of(rows, 'group', path, found)
        end
      end
    end
    return rows
  end,

  -- Apply changed rates to the windows of members. `pairs_of_rates` are {old, new or false}: which plan a user has is
  -- not stored, so a window that has the old rate of a plan gets the new one.
  change_members = function(service, pairs_of_rates)
    local prefix = service.name .. '\0'
    for _, key in ipairs(state.n > 0 and call('HKEYS', KEYS[#KEYS - 1]) or NONE) do
      if sub(key, 1, #prefix) == prefix then
        local id = sub(key, #prefix + 1)
        local found, rate = members.window(service, id), nil
        if byte(id) == 1 then
          rate = members.group_rate(sub(id, 2)) or false
        else
          for _, pair in ipairs(pairs_of_rates) do
            if rate == nil and pair[1] and members.has_rate(found, pair[1]) then
              rate = pair[2] or false
            end
          end
        end
        if rate == false then
          for at = #found, W_FIRST, -1 do
            found[at] = nil
          end
          for at = W_REST, W_USED_UNITS do
            found[at] = 0
          end
          found[W_OLDER], found[W_CHANGED] = false, 1
        else
          if rate then
            take_rate(found, rate)
          end
          members.score(service, found, id)
        end
      end
    end
  end,
}
for key, value in pairs(others) do
  rates[key] = value
end
