-- Choosing the step that gets a free slot. Same behaviour as dispatch/memory/service.py.
--- @nest

local function free_slots(service)
  local free = service.limit - service.leased - service.held
  return rates and rates.room(service, free) or free
end

-- The id of the user or group that is next in a lane.
local function head(service, lane)
  local first = call('ZRANGEBYLEX', service.keys.heads, '[' .. lane .. '\0', '(' .. lane .. '\1', 'LIMIT', '0', '1')[1]
  if first then
    return sub(first, #lane + 18)
  end
end

local function pick_unbound(service, bands)
  -- The heads of all bands are in one sorted set, so the first head is the pick, unless the claim does not accept its
  -- band.
  local first = call('ZRANGEBYLEX', service.keys.heads, '-', '(4', 'LIMIT', '0', '1')[1]
  if not first then
    return nil
  end
  local lowest = tonumber(sub(first, 1, 1))
  for _, band in ipairs(bands) do
    local user
    if band == lowest then
      user = sub(first, 20)
    elseif band > lowest then
      user = head(service, band .. '-')
    end
    if user then
      if sub(user, 1, 1) == '\1' then
        user = scope.groups().next_user(service, band .. '-', user)
      end
      return { band = band, lane = band .. '-', user = user }
    end
  end
end

-- The functions that only services with regions need.
local region_functions
local function of_regions()
  if not region_functions then
    --- @include regions
    --- @include pick_regions
    region_functions = { pick = pick_of_regions, ended = region_ended }
  end
  return region_functions
end

local ALL_BANDS, FIFO_BANDS = { 0, 1, 2, 3 }, { 0, 1 }

-- The step that is next, if the rates of the service and its pool allow it.
local function first_step(service, bands, regions, pool_full, unserved)
  if service.fifo then
    bands = FIFO_BANDS
  end
  if service.regional then
    return of_regions().pick(service, bands, regions, pool_full, unserved)
  end
  local chosen = pick_unbound(service, bands)
  while chosen and rates and rates.parks and rates.parks(service, chosen.lane, chosen.user) do
    chosen = pick_unbound(service, bands)
  end
  return chosen
end

-- The step that gets the next free slot, or nil. `bands` are in order; `regions` is a set, or nil for all; with
-- `pool_full`, the pool is full and only regions outside it are considered; `unserved` is a set as in exchange.lua, or
-- nil.
local function pick(service, bands, regions, pool_full, unserved)
  if not scope.open or service.paused or free_slots(service) <= 0 or (pool_full and not service.partial) then
    return nil
  end
  if rates and rates.may_overtake(service, bands, regions) then
    -- A step that only other workers take holds all others back too, if a rate does not allow it yet.
    local first = first_step(service, ALL_BANDS, nil, pool_full)
    if first and not rates.fits(service, first) then
      return nil
    end
  end
  local chosen = first_step(service, bands, regions, pool_full, unserved)
  if chosen and rates and not rates.fits(service, chosen) then
    return nil
  end
  return chosen
end
