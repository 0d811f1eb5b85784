-- Rates: what their windows count, and the rests that upstreams asked for. Same behaviour as domain/rates.py and
-- dispatch/memory/rates.py. Nothing here is created for a scope without rates. The rates of users and groups are in
-- include/member_rates.lua, what claims do not need in include/rate_queries.lua.
--
-- `scope.rates` is the field `rates` of META: `p`, the pool's window; `n`, the number of members' windows; and for each
-- service `s[name]`: `o`, its window; `r`, the windows of its regions by name; `u`, the rate of each user, or false; and
-- `m`, the mean units of a call, or false. If there are any, `q` has the rates of plans by name, `g` is true if groups
-- have rates, and `z` is true if one of all these limits units.
--
--- @include windows
if scope.rates then
(function() -- nested, as by @nest
--- @include window
(function()
local state, pack_now, may_park, members = scope.rates, false, true, false

-- Whether users have rates. Otherwise their windows are not looked for.
local by_user = state.q and true or false
for i = 1, #services do
  services[i].rates = state.s[services[i].name]
end
for _, of in pairs(state.s) do
  by_user = by_user or of.u and true
end

local function counts(window)
  return window and (window[W_REQUESTS] < MIDDLE or window[W_UNITS] < MIDDLE)
end

-- The rates of a service, made if they are missing.
local function rates_of(service)
  local of = service.rates
  if not of then
    of = { o = new_window(), r = {}, u = false, m = false }
    state.s[service.name], service.rates = of, of
  end
  return of
end

local function cost_at(service, lane, user_id)
  local suffix = first_queued(service, lane, user_id)
  local job = sub(suffix, 18)
  return read_entry(job, call('HGET', ENTRIES, job)).cost
end

local units_count = {}
local function find_units(of)
  if of.o[W_UNITS] < MIDDLE or (of.u and of.u[2] < MIDDLE) or (state.p and state.p[W_UNITS] < MIDDLE) or state.z then
    return true
  end
  for _, window in pairs(of.r) do
    if window[W_UNITS] < MIDDLE then
      return true
    end
  end
  return false
end

-- Whether a rate that holds for steps of the service limits units.
local function counts_units(of)
  local found = units_count[of]
  if found == nil then
    found = find_units(of)
    units_count[of] = found
  end
  return found
end

-- The units that the first step of a user reserves. Read only if a rate limits units.
local function units_at(service, lane, user_id)
  local of = service.rates
  return counts_units(of) and (cost_at(service, lane, user_id) or of.m) or 0
end

-- The windows of the service, the region and the pool in which a call counts, as a mask: 1, 2 and 4. To these,
-- include/member_rates.lua adds 8 for the window of the user and 16 for those of its groups.
local function mask_of(service, region)
  local of = service.rates
  if not of then
    return 0
  end
  return (counts(of.o) and 1 or 0) + (region and counts(of.r[region]) and 2 or 0)
    + (scope.pool_limit and state.p and in_pool(service, region) and 4 or 0)
end

-- Collect the windows of such a mask, which the caller changes, in `windows`, and return their number. The list is used
-- again by the next call, so that nothing is created for each step.
local windows = {}
local function collect(service, region, mask)
  local of, count = service.rates or rates_of(service), 0
  if mask % 2 >= 1 then
    count = count + 1
    windows[count] = of.o
  end
  if mask % 4 >= 2 and of.r[region] then
    count = count + 1
    windows[count] = of.r[region]
  end
  if mask % 8 >= 4 and state.p then
    count = count + 1
    windows[count] = state.p
    for _, each in ipairs(pooled) do -- whether their steps fit changes too
      touch(each)
    end
  end
  pack_now = pack_now or count > 0
  return count
end

-- Count a grant of these units.
local function open(window, units)
  window[W_OPEN], window[W_USED] = window[W_OPEN] + 1, window[W_USED] + 1
  if units > 0 then
    window[W_OPEN_UNITS], window[W_USED_UNITS] = window[W_OPEN_UNITS] + units, window[W_USED_UNITS] + units
  end
  if window[W_LOOK] > 0 then
    window[W_CHANGED] = window[W_CHANGED] or 1
  elseif window[W_KEY] then
    window[W_LOOK], window[W_CHANGED] = MIDDLE, 2 -- it is new
  end
end

local function first_end(window)
  local ends = window[W_OLDER] and window[W_NEXT] or window[W_FIRST] or MIDDLE
  return window[W_REST] > 0 and math.min(window[W_REST], ends) or ends
end

-- Of the service whose steps are taken, from `begin` to `finish`: its window, the units used in it and their limit, 1 if
-- it limits anything, the number and units of the steps taken, its users' rate, the mean units of a call, and whether a
-- rate limits units.
local own, own_used, own_most, own_mask, opened, opened_units, rate_of_users, mean_units, with_units

rates = {
  state = state, by_user = by_user,
  parks = false, read_members = false, groups_ended = false, -- functions, if members have rates

  -- No user is parked by what is called between `peek(true)` and `peek(false)`.
  peek = function(on)
    may_park = not on
  end,

  -- Before `take`, for a service with rates. Returns whether these may park a member; and whether `take`
  -- depends on more of a step than its user.
  begin = function(service)
    local of = service.rates
    own, rate_of_users, mean_units, with_units = of.o, of.u, of.m or 0, counts_units(of)
    own_used, own_most, opened, opened_units = own[W_USED_UNITS], own[W_UNITS], 0, 0
    own_mask = (own[W_REQUESTS] < MIDDLE or own_most < MIDDLE) and 1 or 0
    return (of.u or state.q or state.g) and true or false, state.q or with_units
  end,

  -- After `take`: count the grants in the window of the service.
  finish = function()
    if own_mask == 1 and opened > 0 then
      pack_now = true
      own[W_OPEN], own[W_USED] = own[W_OPEN] + opened, own[W_USED] + opened
      own[W_OPEN_UNITS], own[W_USED_UNITS] = own[W_OPEN_UNITS] + opened_units, own[W_USED_UNITS] + opened_units
    end
  end,

  -- Whether a claim that leaves out some bands or regions could overtake a step that the rate of the service or its pool
  -- does not allow yet.
  may_overtake = function(service, bands, regions)
    local of = service.rates
    return of and (regions or not service.fifo and #bands < 4) and (state.p or of.o[W_UNITS] < MIDDLE)
  end,

  -- Count the grant of a user's next step, in a scope without regions and pool, if the rates allow it now: for the
  -- service, by `finish`. The caller takes no more steps than `room`. Returns as `granted`, with mask 0 if no window
  -- counts it; nil if the units of the service keep it from being granted; false if the rate of the user or one of its
  -- groups does, which is then parked.
  take = function(_, _, cost)
    local units = cost or mean_units
    if own_used >= own_most or own_most < MIDDLE and own_used > 0 and own_used + units > own_most then
      return nil
    elseif own_mask == 1 then
      opened, opened_units, own_used = opened + 1, opened_units + units, own_used + units
    end
    return own_mask, units
  end,

  room = function(service, free)
    local of = service.rates
    return of and math.min(free, room(of.o)) or free
  end,

  region_room = function(service, region, free)
    local of = service.rates
    return of and of.r[region] and math.min(free, room(of.r[region])) or free
  end,

  pool_room = function(free)
    return state.p and math.min(free, room(state.p)) or free
  end,

  -- Whether the rates of the service and its pool allow the chosen step.
  fits = function(service, chosen)
    local of = service.rates
    if not of then
      return true
    end
    local units = units_at(service, chosen.lane, chosen.user)
    return window_fits(of.o, units)
      and not (state.p and scope.pool_limit and in_pool(service, chosen.region) and not window_fits(state.p, units))
  end,

  -- Those of the regions whose rate allows the first step of a user.
  fitting = function(service, lane, user_id, regions)
    local of = service.rates
    if not of or not next(of.r) then
      return regions
    end
    local units, found = units_at(service, lane, user_id), {}
    for _, region in ipairs(regions) do
      if not of.r[region] or window_fits(of.r[region], units) then
        found[#found + 1] = region
      end
    end
    return found
  end,

  -- Count a grant. Returns the mask of its windows, its units, and the path of the innermost of the user's groups with a
  -- rate; or nothing.
  granted = function(service, user_id, region, cost, plan)
    local of, mask, path = service.rates, mask_of(service, region), nil
    local units = cost or of and of.m or 0
    if members and of then
      mask, path = members.granted(service, user_id, plan, mask, units)
    end
    if mask == 0 then
      return nil
    end
    for i = 1, collect(service, region, mask) do
      open(windows[i], units)
    end
    return mask, units, path
  end,

  -- The call of a grant has ended, or was never made. Returns whether a group is to be unparked by `groups_ended`. The
  -- caller calls `count_ended` before it uses the window of the service.
  ended = function(service, user, region, refund, used, mask, units, sent_at, granted, after, path)
    local of = service.rates
    if used and not refund and of then
      of.m, pack_now = smoothed(of.m, used), true
    end
    if not mask then
      return false
    end
    local reported, shared = sent_at and true or false, mask % 8
    sent_at = sent_at or (after and math.min(now, granted + after))
    if shared == 1 and of and not reported and not refund then
      pack_now = true
      ended_late(of.o, units, used, sent_at)
    elseif shared > 0 then
      local end_in = refund and not reported and close or window_ended
      for i = 1, collect(service, region, shared) do
        end_in(windows[i], units, used, sent_at, reported)
      end
    end
    if members and (by_user or mask % 16 >= 8) then
      members.ended_of_user(service, user, refund, used, mask, units, sent_at, reported)
    end
    return members and path and members.ended_of_groups(service, path, refund, used, units, sent_at, reported)
  end,

  count_ended = count_late,

  advance = function()
    for _, service in ipairs(services) do
      local of = service.rates
      if of then
        local over = window_advance(of.o)
        for _, window in pairs(of.r) do
          over = window_advance(window) or over
        end
        if over then
          pack_now = true
          touch(service)
        end
      end
    end
    if state.p and window_advance(state.p) then
      pack_now = true
      for _, service in ipairs(pooled) do
        touch(service)
      end
    end
    if members then
      members.advance()
    end
  end,

  -- µs until a rate that keeps steps waiting may allow the next one, as text; empty if there is none.
  due = function()
    local due, blocked = MIDDLE, false
    for _, service in ipairs(services) do
      local of = service.rates
      if of and not service.runnable and service.waiting[1] + service.waiting[2] + service.waiting[3] > 0 then
        blocked = true
        due = math.min(due, first_end(of.o))
        for _, window in pairs(of.r) do
          due = math.min(due, first_end(window))
        end
      end
    end
    if not blocked then
      return ''
    end
    due = state.p and math.min(due, first_end(state.p)) or due
    if state.n > 0 then
      due = math.min(due, tonumber(call('ZRANGE', KEYS[#KEYS], '0', '0', 'WITHSCORES')[2]) or MIDDLE)
    end
    return due < MIDDLE and format('%d', math.max(0, due - now)) or ''
  end,

  save = function(fields)
    if members then
      members.save()
    end
    if pack_now then
      for _, of in pairs(state.s) do
        fold_many(of.o)
        for _, window in pairs(of.r) do
          fold_many(window)
        end
      end
      if state.p then
        fold_many(state.p)
      end
      fields[#fields + 1], fields[#fields + 2] = 'rates', pack(state)
    end
  end,
}

if by_user or state.g or state.n > 0 then
(function()
--- @include member_rates
end)()
end

setmetatable(rates, {
  __index = function(_, name)
    --- @include rate_queries
    return others[name]
  end,
})
end)()
end)()
end
