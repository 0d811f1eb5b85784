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

-- The unbound lane competes with the lanes of all regions that have a slot; global retries come before all.
local function pick_of_regions(service, bands, regions)
  local free, roomiest, most = {}, nil, 0
  for i = 1, #service.regions, 2 do
    local name = service.regions[i]
    local slots = service.regions[i + 1] - service.taken[name]
    if slots > 0 and (not regions or regions[name]) then
      free[#free + 1] = name
      if slots > most then
        roomiest, most = name, slots
      end
    end
  end
  if not roomiest then
    return nil
  end
  for _, band in ipairs(bands) do
    local best
    local standing, user = head(service, band .. '-')
    if user then
      best = { band = band, lane = band .. '-', standing = standing, user = user, region = roomiest }
    end
    if not (best and band == 0) then
      for _, name in ipairs(free) do
        local lane = band .. '=' .. name
        standing, user = head(service, lane)
        if user then
          local rival = { band = band, lane = lane, standing = standing, user = user, region = name }
          if not best or earlier(service, rival, best) then
            best = rival
          end
        end
      end
    end
    if best then
      return best
    end
  end
end

-- Whose step the next free slot goes to, if there is both. `bands` in order; `regions` a set, or nil for all.
local FIFO_BANDS = { 0, 1 }
local function pick(service, bands, regions)
  if not scope.open or service.paused or free_slots(service) <= 0 then
    return nil
  end
  if service.fifo then
    bands = FIFO_BANDS
  end
  if service.regional then
    return pick_of_regions(service, bands, regions)
  end
  return pick_unbound(service, bands)
end
