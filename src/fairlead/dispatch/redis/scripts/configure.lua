-- configure: apply rules, unless they are older than the rules of the scope. Queues are kept; services that the rules
-- no longer contain get a limit of 0. Users are parked or unparked if the limit per user has changed.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]   version
--   ARGV[6]   the pool's limit, or empty
--   ARGV[7]   the scope's services by these rules, joined by NUL
--   ARGV[8..] per service: name, and rules as JSON {limit, fifo, paused, retries_first, ttl and cost in µs,
--             user_limit or absent, regions as a list of [name, limit] by name, breaker and breaker_rest in µs};
--             optionally `more`, a list of [weight or false, whether in the pool] per region, and `partial` if some
--             regions are outside the pool; `rates`: {own, user, pool, regions by name}, each a list of requests,
--             units in millionths (2^52: unlimited) and per in µs, or absent;
--             `other_unit` if costs are not in seconds, `by_used` if calls are charged by use
-- Two arguments follow, as JSON or empty: the declared groups {path: [weight, limit or false, rate or false]}, and the
-- rates of plans by name.
--
-- Returns {0, services for which to wake this process, joined by NUL, rates_due()}.
--- @include scope
local version, rules_by_name = tonumber(ARGV[5]), {}
if scope.version and version < scope.version then
  return { 0, '' }
end
local groups_json, plans_json = ARGV[#ARGV - 1], ARGV[#ARGV]
local groups = groups_json ~= '' and cjson.decode(groups_json) or {}
local plans = plans_json ~= '' and cjson.decode(plans_json) or nil
local group_rates = nil
for path, group in pairs(groups) do
  if group[3] then
    group_rates = group_rates or {}
    group_rates[path] = group[3]
  end
end
local any_rate = plans or group_rates
for i = 8, #ARGV - 2, 2 do
  local rules = cjson.decode(ARGV[i + 1])
  rules_by_name[ARGV[i]] = rules
  any_rate = any_rate or rules.rates
end
if any_rate and not scope.rates then
  scope.rates = { s = {}, n = 0, p = false }
end
--- @include costs
--- @include queues
--- @include rates
--- @include moves
--- @include pick
--- @include save

-- Visit all users, or all groups.
local function each_user(service, visit, groups)
  each_stored_user(service, function(user_id)
    if (byte(user_id) == 1) == (groups or false) and read_user(service, user_id) then -- false: it is being removed
      visit(user_of(service, user_id))
    end
  end)
end

local function rules_of_groups(path)
  local outer = string.match(path, '^(.*)/[^/]*$')
  local own, above = groups[path] or {}, outer and groups[outer] or {}
  if outer then
    return { above[1] or 1, above[2] or false, own[1] or 1, own[2] or false }
  end
  return { own[1] or 1, own[2] or false }
end

-- Create the groups of all users again, after the records of the groups were removed.
local function regroup_all(service)
  each_user(service, function(group)
    service.users[group[ID]], service.gone[group[ID]] = false, true
  end, true)
  each_user(service, function(user)
    local id = user[LANES] == '@' and user[GROUP]
    if id and not service.fifo then
      scope.groups().set_group(user, nil)
      scope.groups().place(service, user, sub(id, 2), rules_of_groups(sub(id, 2)))
    end
  end)
end

-- Apply changed weights and limits, sorted by id: the order in which groups enter a band matters.
local function change_groups(service)
  local changed = {} -- also if their members' rates have changed
  each_user(service, function(group) changed[#changed + 1] = group end, true)
  table.sort(changed, function(a, b) return before(a[ID], b[ID]) end)
  for _, group in ipairs(changed) do
    local rules = groups[sub(group[ID], 2)] or {}
    group[WEIGHT], group[LANES + 1] = rules[1] or 1, rules[2] or 0
    scope.groups().park_or_unpark(service, group)
  end
end

-- Rebuild the queues for another order or other lanes. Fair shares start from zero.
local function requeue_all(service)
  local k = service.keys
  call('UNLINK', k.heads, k.line, k.seqs, k.idle, k.costs)
  costs_of(service)[STATED] = 0
  service.vt = { [0] = 0, 0, 0, 0 }
  each_user(service, function(user)
    for band = 0, 3 do
      user[TAG + band] = false
    end
    for at = #user, user[LANES] == '@' and MEMBER_LANES or LANES, -1 do
      user[at] = nil
    end
  end)
  regroup_all(service)
  local cursor = '0'
  repeat
    local page = call('HSCAN', ENTRIES, cursor, 'COUNT', 1000)
    cursor = page[1]
    for i = 1, #page[2], 2 do
      local entry = read_entry(page[2][i], page[2][i + 1])
      -- HSCAN may return an entry twice; do not count a queued step again.
      if entry.service == service.name then
        local _, member = member_of(service, entry)
        flush_joins(service)
        if not call('ZSCORE', k.line, member) then
          local user = user_of(service, entry.user)
          join_queue(service, user, entry.job, entry.seq, entry.band, entry.rank, entry.region, entry.cost)
        end
      end
    end
  until cursor == '0'
  -- All waiting users were waiting before, so none of them is new.
  for _, user in pairs(service.users) do
    if user then
      for band = 0, 3 do
        user[NEW + band] = false
      end
    end
  end
end

-- Parked users come last, in sorted order, because the order in which they re-enter a band matters.
local function park_or_unpark_all(service)
  local parked = {}
  each_user(service, function(user)
    if user[PARKED] then
      parked[#parked + 1] = user
    else
      park_or_unpark(service, user)
    end
  end)
  table.sort(parked, function(a, b) return before(a[ID], b[ID]) end)
  for _, user in ipairs(parked) do
    park_or_unpark(service, user)
  end
end

local function shape(service)
  return (service.fifo and 'fifo ' or 'fair ') .. (service.retries_first and 'first ' or '')
    .. (service.regional and 'regions' or '')
end

local fields = { 'version', ARGV[5], 'services', ARGV[7] }
local groups_changed = (call('HGET', META, 'groups') or '') ~= groups_json
if groups_changed then
  fields[5], fields[6] = 'groups', groups_json
end

local function text(rate)
  return rate and table.concat(rate, ' ') or ''
end

-- The stored rates of groups, by path.
local function old_group_rates()
  local paths, names_of_fields, found = rates.rated_paths(), {}, {}
  for i, path in ipairs(paths) do
    names_of_fields[i] = 'rate:' .. path
  end
  for i, stored in ipairs(read_many(META, names_of_fields)) do
    found[paths[i]] = stored
  end
  return found
end

-- Apply the rates of groups. Returns whether one has changed.
local function change_group_rates()
  local old, written, gone = old_group_rates(), {}, {}
  for path, rate in pairs(group_rates or NONE) do
    local stored = pack(unpack(rate))
    if stored ~= old[path] then
      written[#written + 1], written[#written + 2] = 'rate:' .. path, stored
      rates.change_group(path, rate)
    end
    old[path] = nil
  end
  for path in pairs(old) do
    gone[#gone + 1] = 'rate:' .. path
    rates.change_group(path, false)
  end
  call_many('HSET', META, written, 2)
  call_many('HDEL', META, gone)
  return #written + #gone > 0
end

-- Apply the rates of plans and groups. Returns the old rates of plans, and whether any of these rates has changed.
local function change_member_rates()
  local state, changed, units = rates.state, change_group_rates(), false
  local old, new = state.q or NONE, plans or NONE
  for _, both in ipairs({ { old, new }, { new, old } }) do
    for name, rate in pairs(both[1]) do
      changed = changed or text(rate) ~= text(both[2][name])
    end
  end
  for _, rates_by_name in ipairs({ new, group_rates or NONE }) do
    for _, rate in pairs(rates_by_name) do
      units = units or rate[2] < MIDDLE
    end
  end
  state.q, state.g, state.z = plans, group_rates and true, units or nil
  return old, changed
end
local old_plans, member_rates_changed = NONE, false
if rates then
  old_plans, member_rates_changed = change_member_rates()
end

-- Apply the rates of a service. Returns whether a rate of its members has changed: then all of them are looked at again.
local function change_rates(service, new)
  if not rates or (new == NONE and not rates.state.s[service.name] and not plans and not group_rates) then
    return false
  end
  local of = rates.rates_of(service)
  rates.take_rate(of.o, new.own)
  for region, window in pairs(of.r) do
    rates.take_rate(window, new.regions and new.regions[region])
  end
  for region, rate in pairs(new.regions or NONE) do
    of.r[region] = of.r[region] or rates.new_window(rate)
  end
  if text(of.u) == text(new.user) and not member_rates_changed then
    return false
  end
  local names, pairs_of_rates = {}, { { of.u, new.user or false } }
  of.u = new.user or false
  for name in pairs(old_plans) do
    names[#names + 1] = name
  end
  table.sort(names, before)
  for _, name in ipairs(names) do
    pairs_of_rates[#pairs_of_rates + 1] = { old_plans[name], plans and plans[name] or of.u }
  end
  rates.change_members(service, pairs_of_rates)
  return true
end

local function change(service, rules, breaker, breaker_rest, new_rates)
  local old_shape, old_limit = shape(service), service.user_limit
  take_rules(service, unpack(rules))
  service.breaker, service.breaker_rest = breaker, breaker_rest
  service.health = service.regional and service.health ~= NONE and service.health or {}
  if breaker == 0 then
    for _, health in pairs(service.health) do
      health[REST], health[UNTIL], health[PROBE] = 0, 0, false
    end
  end
  count_slots(service)
  if scope.lost then -- the rebuild queues and parks
    old_shape, old_limit = shape(service), service.user_limit
  end
  if shape(service) ~= old_shape then
    requeue_all(service)
  end
  local new_user_rate = new_rates and change_rates(service, new_rates)
  if new_user_rate then
    each_stored_user(service, function(id)
      local node = read_user(service, id)
      if node and type(node[PARKED]) == 'number' then
        node[PARKED], node[CHANGED] = 0, true
      end
    end)
  end
  if service.user_limit ~= old_limit or new_user_rate then
    park_or_unpark_all(service)
  end
  if (groups_changed or new_user_rate) and not scope.lost then
    change_groups(service)
  end
  fields[#fields + 1] = 'rules:' .. service.name
  fields[#fields + 1] = pack(unpack(rules))
  touch(service)
end

-- In the order expected by take_rules.
local function rules_from(r)
  local rules = { r.limit, r.fifo, r.paused, r.retries_first, r.ttl, r.cost, r.user_limit or false }
  for _, region in ipairs(r.regions) do
    rules[#rules + 1], rules[#rules + 2] = region[1], region[2]
  end
  if r.more then
    for _, region in ipairs(r.more) do
      rules[#rules + 1], rules[#rules + 2] = region[1], region[2]
    end
    rules[#rules + 1], rules[#rules + 2] = r.partial, true
  end
  return rules
end

local function without_slots(service)
  local rules = { 0, service.fifo, service.paused, service.retries_first, service.ttl, service.cost, service.user_limit }
  for _, value in ipairs(service.regions) do
    rules[#rules + 1] = value
  end
  return rules
end

for _, service in ipairs(services) do
  local r = rules_by_name[service.name]
  if r then
    change(service, rules_from(r), r.breaker, r.breaker_rest, r.rates or NONE)
    local costs = costs_of(service)
    local in_seconds, by_used = not r.other_unit, r.by_used or false
    if costs[IN_SECONDS] ~= in_seconds or costs[BY_USED] ~= by_used then
      costs[IN_SECONDS], costs[BY_USED], service.costs_changed = in_seconds, by_used, true
    end
  elseif service.limit ~= 0 then
    change(service, without_slots(service), service.breaker, service.breaker_rest, false)
  end
end

scope.pool_limit, pooled = tonumber(ARGV[6]), {}
if scope.pool_limit then
  scope.pool = scope.pool or new_pool()
  fields[#fields + 1] = 'pool_limit'
  fields[#fields + 1] = ARGV[6]
  for _, name in ipairs(split(ARGV[7])) do
    pooled[#pooled + 1] = by_name[name]
  end
else
  call('HDEL', META, 'pool_limit')
end
if rates then
  local rate = false
  for _, r in pairs(rules_by_name) do
    rate = rate or r.rates and r.rates.pool or false
  end
  local window = rates.state.p
  rates.state.p = rate and (window and rates.take_rate(window, rate) or rates.new_window(rate))
  rates.changed()
end
call('HSET', META, unpack(fields))
return { 0, wake(save()), rates_due() }
