-- One claim's dealings with a pool: which slots it gets, and which it leaves to others. As memory/pool.py.
-- Its `left` (by service) and `left_to` (by worker) outlive one call of the script, when a claim needs several.

--- @const WORKER_MEMORY 30000000

-- Other live workers whose last claim left them with room, by name. Those that fell silent are forgotten.
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

local function options_of(dealings, worker, dry)
  local options = {}
  for _, service in ipairs(pooled) do
    if worker.services[service.name] and free_slots(service) > (dealings.left[service.name] or 0) then
      local chosen = pick(service, worker.bands, worker.regions, dry)
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

-- How many of a service's steps wait in a band, over all lanes.
local function waiting_in(service, band)
  return call('ZLEXCOUNT', service.keys.line, '[' .. band, '(' .. (band + 1))
end

local function cost_at_head(service, chosen)
  local suffix = first_in_line(service, chosen.lane, chosen.user)
  local job = sub(suffix, 18)
  return estimate_of(service, read_user(service, chosen.user), read_entry(job, call('HGET', ENTRIES, job)).cost)
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

local function best_of_rivals(dealings)
  local options = {}
  for _, rival in ipairs(dealings.rivals) do
    if (dealings.left_to[rival.name] or 0) < rival.spare then
      for _, option in ipairs(options_of(dealings, rival)) do
        local left = dealings.left[option.service.name] or 0
        if option.takes_slot and left < waiting_in(option.service, option.band) then
          -- Slots already left to that service count as if it had had them: turns stay turns.
          if left > 0 then
            option.start = option.start + left * charge(cost_at_head(option.service, option.chosen), 1)
          end
          options[#options + 1] = option
        end
      end
    end
  end
  return best_of(options)
end

local function next_of_pool(dealings)
  local total = 0
  for _, count in pairs(dealings.left) do
    total = total + count
  end
  while true do
    local dry, theirs = pool_free() <= total, nil
    local mine = best_of(options_of(dealings, dealings.worker, dry))
    if not mine and dry then
      return nil
    end
    if not mine or mine.takes_slot then
      theirs = best_of_rivals(dealings)
    end
    if not theirs or (mine and not better(theirs, mine)) then
      return mine and mine.service, mine and mine.chosen
    end
    dealings.left[theirs.service.name] = (dealings.left[theirs.service.name] or 0) + 1
    dealings.left_to[theirs.worker.name] = (dealings.left_to[theirs.worker.name] or 0) + 1
    total = total + 1
  end
end
