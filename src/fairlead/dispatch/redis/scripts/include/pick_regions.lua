-- Choosing a step of a service with regions, and the region that it runs in.

local function earlier(service, a, b)
  if a.order ~= b.order then
    return before(a.order, b.order)
  end
  -- A user may be first in two lanes. The order of the user's own steps then decides.
  local first, other = first_queued(service, a.lane, a.user), first_queued(service, b.lane, b.user)
  return before(first, other)
end

-- The regions with a free slot, in the order preferred for unbound steps: healthy regions, then those with the least
-- load relative to their weight (if weights differ), then the fastest, then those with the most free slots. Also
-- returns the order for steps that are not retries: regions to be probed go first, because otherwise they would stay
-- unused until all others are full.
local function free_regions(service, regions, pool_full)
  local free, slots_in, failing, latency, load = {}, {}, {}, {}, {}
  for i = 1, #service.regions, 2 do
    local name = service.regions[i]
    local slots = region_free(service, name, service.regions[i + 1])
    if slots > 0 and (not regions or regions[name]) and not (pool_full and in_pool(service, name)) then
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

-- Implements `first_step` for a service with regions. The unbound lane competes with the lanes of all regions that have a
-- free slot; retries that go first precede all of them. A search for the first head from the start of a lane finds a
-- head of that lane or, if the lane is empty, of the next one.
local function pick_of_regions(service, bands, regions, pool_full, unserved)
  local free, probes_first = free_regions(service, regions, pool_full)
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
      local order, user, in_turn = sub(first, #lane + 2), sub(first, #lane + 18), band == 0 and free or probes_first
      if sub(user, 1, 1) == '\1' then
        local within
        user, within = scope.groups().next_user(service, lane, user)
        order = order .. within
      end
      if rates and rates.parks and rates.parks(service, lane, user) then
        from = '[' .. lane
      else
        in_turn = rates and rates.fitting(service, lane, user, in_turn) or in_turn
        local region = best_region(service, lane, in_turn, unserved)
        if region and not (best and band == 0 and best.lane == UNBOUND[0]) then
          local candidate = { band = band, lane = lane, order = order, user = user, region = region }
          if not best or earlier(service, candidate, best) then
            best = candidate
          end
          if band == 0 and lane == UNBOUND[0] and not rates then
            return best
          end
        end
        from = '[' .. lane .. '\1'
      end
    end
    if best then
      return best
    end
  end
end
