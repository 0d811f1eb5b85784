-- A claim on a pool: the slots that the claim takes, and the slots that it reserves for other workers. Same behaviour as
-- dispatch/memory/claim_sources.py. `reserved` (by service) and `reserved_for` (by worker) count reserved slots. They
-- are kept between the calls of the script if a claim needs several calls.

--- @const WORKER_MEMORY 30000000

-- Other live workers whose last claim left unused budget, sorted by name. Workers without a recent claim are forgotten.
local function rivals_of(claimer)
  local read, known, spares = call('HGETALL', WORKERS), {}, {}
  for i = 1, #read, 2 do
    local kind, name = sub(read[i], 1, 2), sub(read[i], 3)
    if kind == 's:' then
      spares[name] = tonumber(read[i + 1])
    else
      local r = unpack_of(read[i + 1])
      if now - r[4] > WORKER_MEMORY then
        call('HDEL', WORKERS, 'w:' .. name, 's:' .. name)
      elseif name ~= claimer then
        known[#known + 1] = { name = name, services = read_set(r[1]), bands = r[2], regions = r[3] and read_set(r[3]) }
      end
    end
  end
  local rivals = {}
  for _, rival in ipairs(known) do
    rival.spare = spares[rival.name] or 0
    if rival.spare > 0 then
      rivals[#rivals + 1] = rival
    end
  end
  table.sort(rivals, function(a, b) return before(a.name, b.name) end)
  return rivals
end

local function better(a, b)
  if a.band ~= b.band then
    return a.band < b.band
  end
  if a.again ~= b.again then
    return b.again
  end
  if a.start ~= b.start then
    return a.start < b.start
  end
  return before(a.service.name, b.service.name)
end

local function options_of(state, worker, pool_full)
  local options = {}
  for _, service in ipairs(pooled) do
    if worker.services[service.name] and free_slots(service) > (state.reserved[service.name] or 0) then
      local chosen = pick(service, worker.bands, worker.regions, pool_full, worker.unserved)
      if chosen then
        local start = math.max(scope.pool[1][chosen.band + 1], scope.pool[2][chosen.band + 1][service.name] or 0)
        local takes_slot = in_pool(service, chosen.region)
        options[#options + 1] = { band = chosen.band, start = start, service = service, chosen = chosen, worker = worker,
          takes_slot = takes_slot, again = not takes_slot and scope.pool[4][service.name] == true }
      end
    end
  end
  return options
end

-- How many steps of a service wait in a band, over all lanes.
local function waiting_in(service, band)
  return call('ZLEXCOUNT', service.keys.line, '[' .. band, '(' .. (band + 1))
end

local function cost_at_head(service, chosen)
  local suffix = first_queued(service, chosen.lane, chosen.user)
  local job = sub(suffix, 18)
  return estimate_of(service, read_user(service, chosen.user), read_entry(job, call('HGET', ENTRIES, job)).cost,
    chosen.region)
end

local function best_of(options)
  local best
  for _, option in ipairs(options) do
    if not best or better(option, best) then
      best = option
    end
  end
  return best
end

local function best_of_rivals(state)
  local options = {}
  for _, rival in ipairs(state.rivals) do
    if (state.reserved_for[rival.name] or 0) < rival.spare then
      for _, option in ipairs(options_of(state, rival)) do
        local reserved = state.reserved[option.service.name] or 0
        if option.takes_slot and reserved < waiting_in(option.service, option.band) then
          -- Count the slots already reserved for a service as if granted, so that services keep alternating.
          if reserved > 0 then
            option.start = option.start + reserved * charge(cost_at_head(option.service, option.chosen), 1)
          end
          options[#options + 1] = option
        end
      end
    end
  end
  return best_of(options)
end

local function next_of_pool(state)
  local total = 0
  for _, count in pairs(state.reserved) do
    total = total + count
  end
  while true do
    local pool_full, theirs = pool_free() <= total, nil
    local mine = best_of(options_of(state, state.worker, pool_full))
    if not mine and pool_full then
      return nil
    end
    if not mine or mine.takes_slot then
      theirs = best_of_rivals(state)
    end
    if not theirs or (mine and not better(theirs, mine)) then
      return mine and mine.service, mine and mine.chosen
    end
    state.reserved[theirs.service.name] = (state.reserved[theirs.service.name] or 0) + 1
    state.reserved_for[theirs.worker.name] = (state.reserved_for[theirs.worker.name] or 0) + 1
    total = total + 1
  end
end
