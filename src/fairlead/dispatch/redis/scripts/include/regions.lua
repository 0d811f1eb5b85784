-- Which regions a lane may use, and the circuit breakers of the regions. Same behaviour as
-- dispatch/memory/regions.py.
--
-- The health of a region is a list: the number of consecutive failures; the length of its rest (for a working region:
-- the time until which others are preferred, after a failure); the end of its rest (0: it works); the lease of the
-- probe or false; and its latency or false.
--
--- @const FAILURES 1
--- @const REST 2
--- @const UNTIL 3
--- @const PROBE 4
--- @const LATENCY 5
--- @const LONGEST_REST 10

-- The regions that steps of this lane may run in now, with `+` on either side; empty means any. A preferred region is
-- skipped while its breaker is open, while no worker serves it (`unserved`), or if it no longer exists.
local function allowed_regions(service, lane, unserved)
  if sub(lane, 2, 2) == '-' then
    return ''
  end
  local names = sub(lane, 3)
  local prefers, others = string.match(names, '^(.-)>(.*)$')
  if prefers then
    local health = service.health[prefers]
    local takes_calls = service.taken[prefers] and (not health or health[UNTIL] == 0)
    local served = not unserved or not unserved[service.name .. ':' .. prefers]
    names = takes_calls and served and prefers or others
  end
  return names == '' and '' or '+' .. names .. '+'
end

local function is_within(region, reached)
  return reached == '' or string.find(reached, '+' .. region .. '+', 1, true) ~= nil
end

-- Whether this region may serve the lane.
local function serves(service, region, lane, unserved)
  return is_within(region, allowed_regions(service, lane, unserved))
end

-- The first of these regions that may serve the lane.
local function best_region(service, lane, preferred, unserved)
  local reached = allowed_regions(service, lane, unserved)
  for _, region in ipairs(preferred) do
    if is_within(region, reached) then
      return region
    end
  end
end

-- Whether the next call to the region is the probe.
local function to_probe(health)
  return health ~= nil and health[UNTIL] > 0 and now >= health[UNTIL] and not health[PROBE]
end

local function avoided(health)
  return health ~= nil and health[UNTIL] == 0 and now < health[REST]
end

-- How many slots of a region may be granted if `more` of its taken slots became free.
local function region_free(service, name, limit, more)
  local free, health = limit - service.taken[name] + (more or 0), service.health[name]
  if rates then
    free = rates.region_room(service, name, free)
  end
  if not health or health[UNTIL] == 0 then
    return free
  end
  return to_probe(health) and math.min(1, free) or 0
end

-- Record the end of a call; `mark` is its outcome, as in include/grant.lua. While the region rests or is being probed,
-- only the probe counts, because all other calls started before the rest.
local function region_ended(service, region, lease, mark, took)
  local health = service.health[region]
  local is_probe = health and health[PROBE] == lease
  if is_probe then
    health[PROBE] = false
  end
  local failed = mark == '3'
  if not service.regional or not (failed or mark == '2') then
    return
  end
  if not health then
    health = { 0, 0, 0, false, false }
    service.health[region] = health
  end
  if not failed then
    health[LATENCY] = smoothed(health[LATENCY], took)
  end
  if health[UNTIL] > 0 and not is_probe then
    return
  end
  if not failed then
    health[FAILURES], health[REST], health[UNTIL] = 0, 0, 0
    return
  end
  health[FAILURES] = health[FAILURES] + 1
  if is_probe then
    health[REST] = math.min(2 * health[REST], LONGEST_REST * service.breaker_rest)
    health[UNTIL] = now + health[REST]
  elseif service.breaker > 0 and service.breaker <= health[FAILURES] then
    health[REST], health[UNTIL] = service.breaker_rest, now + service.breaker_rest
  else
    health[REST] = now + service.breaker_rest
  end
end
