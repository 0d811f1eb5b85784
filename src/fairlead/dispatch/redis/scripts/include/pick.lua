-- Which step a free slot goes to. As memory/service.py.
--- @nest

local function free_slots(service)
  return service.limit - service.leased - service.held
end

-- Who is next in a lane: standing and user.
local function head(service, lane)
  local first = call('ZRANGEBYLEX', service.keys.heads, '[' .. lane .. '\0', '(' .. lane .. '\1', 'LIMIT', '0', '1')[1]
  if first then
    return sub(first, #lane + 2, #lane + 17), sub(first, #lane + 18)
  end
end

local function pick_unbound(service, bands)
  -- The heads of all bands are in one set, so the first of them is the pick, unless its band is not asked for.
  local first = call('ZRANGEBYLEX', service.keys.heads, '-', '+', 'LIMIT', '0', '1')[1]
  if not first then
    return nil
  end
  local lowest = tonumber(sub(first, 1, 1))
  for _, band in ipairs(bands) do
    if band == lowest then
      return { band = band, lane = band .. '-', user = sub(first, 20) }
    elseif band > lowest then
      local _, user = head(service, band .. '-')
      if user then
        return { band = band, lane = band .. '-', user = user }
      end
    end
  end
end

local function earlier(service, a, b)
  if a.standing ~= b.standing then
    return before(a.standing, b.standing)
  end
  if a.user ~= b.user then
    return before(a.user, b.user)
  end
  -- One user may be the head of two lanes: then its own order decides.
  local first, other = first_in_line(service, a.lane, a.user), first_in_line(service, b.lane, b.user)
  return before(first, other)
end

-- Regions with a slot, the one that unbound work prefers first: healthy, then with the least to do for its weight, if they
-- differ, then fast, then with most slots. Beside them the same list for what is no retry: those that are to be probed go
-- first there, or they would stay unused until all others are full.
local function free_regions(service, regions, dry)
  local free, slots_in, failing, latency, load = {}, {}, {}, {}, {}
  for i = 1, #service.regions, 2 do
    local name = service.regions[i]
    local slots = region_free(service, name, service.regions[i + 1])
    if slots > 0 and (not regions or regions[name]) and not (dry and in_pool(service, name)) then
      local health = service.health[name]
      free[#free + 1], slots_in[name] = name, slots
      failing[name] = avoided(health) or to_probe(health)
      latency[name] = health and health[LATENCY] or 0
      load[name] = service.weights[name] and (service.taken[name] + 1) / service.weights[name] or 0
    end
  end
  table.sort(free, function(a, b)
    if failing[a] ~= failing[b] then
      return failing[b]
    end
    if load[a] ~= load[b] then
      return load[a] < load[b]
    end
    if latency[a] ~= latency[b] then
      return latency[a] < latency[b]
    end
    if slots_in[a] ~= slots_in[b] then
      return slots_in[a] > slots_in[b]
    end
    return before(a, b)
  end)
  local probes_first = {}
  for _, probes in ipairs({ true, false }) do
    for _, name in ipairs(free) do
      if to_probe(service.health[name]) == probes then
        probes_first[#probes_first + 1] = name
      end
    end
  end
  return free, probes_first
end

-- The lanes compete that have a region with a slot, and the unbound one; global retries come before all. The first head
-- from a lane's beginning on is that lane's, or the next one's that has any.
local function pick_of_regions(service, bands, regions, dry)
  local free, probes_first = free_regions(service, regions, dry)
  if #free == 0 then
    return nil
  end
  for _, band in ipairs(bands) do
    local best, from = nil, '[' .. band
    while true do
      local first = call('ZRANGEBYLEX', service.keys.heads, from, '(' .. (band + 1), 'LIMIT', '0', '1')[1]
      if not first then
        break
      end
      local lane = string.match(first, '^[^%z]+')
      local region = best_region(lane, band == 0 and free or probes_first)
      if region then
        local standing, user = sub(first, #lane + 2, #lane + 17), sub(first, #lane + 18)
        local rival = { band = band, lane = lane, standing = standing, user = user, region = region }
        if not best or earlier(service, rival, best) then
          best = rival
        end
        if band == 0 and lane == UNBOUND[0] then
          return best
        end
      end
      from = '[' .. lane .. '\1'
    end
    if best then
      return best
    end
  end
end

-- Whose step the next free slot goes to, if there is both. `bands` in order; `regions` a set, or nil for all; `dry`: the
-- pool has none, so only regions that do not count in it may have one.
local FIFO_BANDS = { 0, 1 }
local function pick(service, bands, regions, dry)
  if not scope.open or service.paused or free_slots(service) <= 0 or (dry and not service.partial) then
    return nil
  end
  if service.fifo then
    bands = FIFO_BANDS
  end
  if service.regional then
    return pick_of_regions(service, bands, regions, dry)
  end
  return pick_unbound(service, bands)
end
