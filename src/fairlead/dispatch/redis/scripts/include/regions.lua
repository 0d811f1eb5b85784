-- Regions: which of them a lane may go to, and how each does. As memory/health.py.
--
-- The health of a region is a list: how many calls failed in a row, how long it rests (of one that works: until when
-- others are preferred because of a failure), until when it rests (0: it works), the lease of the probe or false, and its
-- latency or false.
--
--- @const FAILURES 1
--- @const REST 2
--- @const UNTIL 3
--- @const PROBE 4
--- @const LATENCY 5
--- @const LONGEST_REST 10

-- Whether this region may serve the lane.
local function serves(region, lane)
  return sub(lane, 2, 2) == '-' or string.find(sub(lane, 3) .. '+', region .. '+', 1, true) == 1
    or string.find(lane .. '+', '+' .. region .. '+', 1, true) ~= nil
end

-- The first of these regions that may serve the lane.
local function best_region(lane, preferred)
  for _, region in ipairs(preferred) do
    if serves(region, lane) then
      return region
    end
  end
end

-- Whether the next call there is to show if the region works again.
local function to_probe(health)
  return health ~= nil and health[UNTIL] > 0 and now >= health[UNTIL] and not health[PROBE]
end

local function avoided(health)
  return health ~= nil and health[UNTIL] == 0 and now < health[REST]
end

-- How many of a region's slots may be granted; `more` are free though they are counted as taken.
local function region_free(service, name, limit, more)
  local free, health = limit - service.taken[name] + (more or 0), service.health[name]
  if not health or health[UNTIL] == 0 then
    return free
  end
  return to_probe(health) and math.min(1, free) or 0
end

-- A call is over, as the release marks it (include/grant.lua). Of a region that rests, or is to be probed, only the probe
-- says anything new: other calls that end there began before.
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
