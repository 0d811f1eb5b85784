-- The end of a script: write the changes, determine which services became runnable, and send wakeups.

--- @const WAITER_MEMORY 30000000

local function save_service(service)
  local k = service.keys
  refresh(service)
  if service.waiting_costs and service.costs[STATED] <= 0 then
    service.costs[STATED] = 0
    call('UNLINK', k.costs)
  elseif service.waiting_costs then
    -- Add up the costs that began and ceased to wait. A sum may be missing, if a process of an older version queued the
    -- steps.
    local names_of_sums, sums, stated, count, n = {}, {}, service.waiting_stated, 0, 0
    for name in pairs(stated) do
      count = count + 1
      names_of_sums[count] = name
    end
    local read = read_many(k.costs, names_of_sums)
    for i = 1, count do
      local name, steps, sum = names_of_sums[i], unpack_of(read[i] or '')
      steps, sum = (steps or 0) + stated[name], (sum or 0) + service.waiting_costs[name]
      if steps > 0 then
        sums[n + 1], sums[n + 2] = name, pack(steps, sum > 0 and sum or 0)
        n = n + 2
      else
        call('HDEL', k.costs, name)
      end
    end
    write_many(k.costs, sums, true)
  end
  local written, count, gone = {}, 0, {}
  for user_id, user in pairs(service.users) do
    if user and user[CHANGED] then
      count = count + 2
      written[count - 1], written[count] = user_id, stored_user(user)
      service.gone[user_id] = nil
    end
  end
  for user_id in pairs(service.gone) do
    gone[#gone + 1] = user_id
  end
  call_many('HDEL', k.users, gone)
  write_many(k.users, written, not service.known or #gone > 0)
  write_many(k.leases, service.new_leases, 2 * service.leased == #service.new_leases)
  call_many('ZADD', k.slots, service.new_slots, 2)
end

local function pool_free()
  local free = scope.pool_limit
  for _, service in ipairs(pooled) do
    free = free - taken_of_pool(service)
  end
  free = rates and rates.pool_room(free) or free
  return free
end

-- The services of the pool that became runnable. Runnable services that an earlier claim passed over are included,
-- because their workers should try again after a change.
local function turned_in_pool(turned, passed_over)
  local has_slot, passed = pool_free() > 0, scope.pool[3]
  for _, service in ipairs(pooled) do
    local runnable = service.ready and (has_slot or pick(service, ALL_BANDS, nil, true) ~= nil)
    if runnable and (not service.runnable or passed[service.name]) then
      passed[service.name] = nil
      if not passed_over[service.name] then
        turned[service.name] = true
      end
    end
    if runnable ~= service.runnable then
      service.runnable = runnable
      touch(service)
    end
  end
end

-- Write all changes. Returns the services that the operation made runnable. `passed_over` are the services that the
-- current claim passed over.
local function save(passed_over)
  local turned, fields, in_pool = {}, {}, false
  for _, service in ipairs(services) do
    save_service(service)
    if service.touched then
      service.ready = pick(service, ALL_BANDS) ~= nil
      if scope.pool_limit then
        in_pool = true
      else
        if service.ready and not service.runnable then
          turned[service.name] = true
        end
        service.runnable = service.ready
      end
    end
  end
  passed_over = passed_over or {}
  if in_pool then
    turned_in_pool(turned, passed_over)
  end
  for name in pairs(passed_over) do
    scope.pool[3][name] = true
  end
  if scope.unmet or scope.found_nothing then
    -- Services turn runnable again for workers bound to bands in which a claim has found nothing since the last wakeup:
    -- they may have been runnable for other bands all the time.
    local unmet, nothing, changed = scope.unmet or {}, scope.found_nothing or NONE, false
    for name, bands in pairs(unmet) do
      local service = by_name[name]
      if service and service.touched and service.runnable and not passed_over[name] then
        for band in string.gmatch(bands, '%d') do
          if pick(service, { 0, tonumber(band) }) then
            bands, turned[name], changed = string.gsub(bands, band, ''), true, true
          end
        end
        unmet[name] = bands ~= '' and bands or nil
      end
    end
    for name in pairs(nothing[1] or NONE) do
      for _, band in ipairs(nothing[2]) do
        if band > 0 and not string.find(unmet[name] or '', band, 1, true) then
          unmet[name], changed = (unmet[name] or '') .. band, true
        end
      end
    end
    if changed then
      fields[1], fields[2] = 'unmet', pack(unmet)
    end
  end
  if rates then
    rates.save(fields)
  end
  for _, service in ipairs(services) do
    if service.touched then
      add_state(fields, service)
    end
  end
  if scope.worn_out then
    fields[#fields + 1] = 'open'
    fields[#fields + 1] = 'lost'
  end
  if scope.pool_limit then
    fields[#fields + 1] = 'pool'
    fields[#fields + 1] = pack(scope.pool)
  end
  if scope.counter ~= scope.counter_read then
    fields[#fields + 1] = 'counter'
    fields[#fields + 1] = format('%d', scope.counter)
  end
  if #fields == 0 then
    fields = { 'counter', format('%d', scope.counter) } -- as in include/master.lua: every script must write
  end
  call_many('HSET', META, fields, 2)
  return turned
end

-- µs until a rate may allow further steps, as text; empty if no step waits for one.
local function rates_due()
  return rates and rates.due() or ''
end

local PROCESS, CLUSTER = ARGV[3], ARGV[4] == '1'

-- Notify one waiting process per service. Returns the services that this process handles itself, joined by NUL. The
-- helper functions are created only if needed.
local function wake(runnable)
  if not next(runnable) then
    return ''
  end
  if rates then
    rates.peek(true) -- a user that `waiter_for` parked would not be written
  end
  local read, waiters, own = call('HGETALL', WAITERS), {}, {}
  for i = 1, #read, 2 do
    waiters[read[i]] = unpack_of(read[i + 1])
  end

  -- The process to notify among those waiting for this service: this process if it waits, otherwise the one whose last
  -- wakeup is the oldest, without those that are bound to bands and could take no step. Nil if none waits; then the
  -- next worker that finishes a step claims anyway.
  local function waiter_for(name)
    local best
    for process, waiter in pairs(waiters) do
      local waits, service = now - waiter[1] <= WAITER_MEMORY and waiter[3][name], by_name[name]
      if waits and (not waiter[4] or not service or pick(service, waiter[4])) then
        if process == PROCESS then
          return process
        end
        if not best or waiter[2] < waiters[best][2] or (waiter[2] == waiters[best][2] and process < best) then
          best = process
        end
      end
    end
    return best
  end

  for name in pairs(runnable) do
    local process = waiter_for(name)
    while process and process ~= PROCESS do
      waiters[process][2] = now
      local receivers = call('PUBLISH', string.gsub(META, '{.*', '') .. 'wake:' .. process, name)
      if receivers > 0 or CLUSTER then
        call('HSET', WAITERS, process, pack(waiters[process]))
        break
      end
      call('HDEL', WAITERS, process)
      waiters[process] = nil
      process = waiter_for(name)
    end
    if not process or process == PROCESS then
      own[#own + 1] = name
    end
  end
  return table.concat(own, '\0')
end
