-- The end of a script: write what changed, find what turned runnable, and choose whom to wake for it.

--- @const WAITER_MEMORY 30000000
local ALL_BANDS = { 0, 1, 2, 3 }

local function save_service(service)
  local k = service.keys
  refresh(service)
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
  return free
end

-- Something changed, so those that were passed over may have better luck: they count as turned as well.
local function turned_in_pool(turned, passing)
  local has_slot, passed = pool_free() > 0, scope.pool[3]
  for _, service in ipairs(pooled) do
    local runnable = service.ready and (has_slot or pick(service, ALL_BANDS, nil, true) ~= nil)
    if runnable and (not service.runnable or passed[service.name]) then
      passed[service.name] = nil
      if not passing[service.name] then
        turned[service.name] = true
      end
    end
    if runnable ~= service.runnable then
      service.runnable = runnable
      touch(service)
    end
  end
end

-- Write everything; the services that the operation made runnable. `passing`: those that a claim has just passed over.
local function save(passing)
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
  passing = passing or {}
  if in_pool then
    turned_in_pool(turned, passing)
  end
  for name in pairs(passing) do
    scope.pool[3][name] = true
  end
  for _, service in ipairs(services) do
    if service.touched then
      fields[#fields + 1] = 'state:' .. service.name
      fields[#fields + 1] = stored_state(service)
    end
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
    fields = { 'counter', format('%d', scope.counter) } -- as in include/master.lua: every script is to write something
  end
  call_many('HSET', META, fields, 2)
  return turned
end

local PROCESS, CLUSTER = ARGV[3], ARGV[4] == '1'

-- Tell one waiting process per service; those that are this process's own to hear are returned, joined by NUL. What
-- only this needs is made only when it is needed.
local function wake(woken)
  if not next(woken) then
    return ''
  end
  local read, waiters, own = call('HGETALL', WAITERS), {}, {}
  for i = 1, #read, 2 do
    waiters[read[i]] = unpack_of(read[i + 1])
  end

  -- The process to tell, of those that wait with room for this service: this one if it does, else who was told the
  -- longest ago. Nil: none waits, so whoever finishes something asks anyway.
  local function waiter_for(name)
    local best
    for process, waiter in pairs(waiters) do
      if now - waiter[1] <= WAITER_MEMORY and waiter[3][name] then
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

  for name in pairs(woken) do
    local process = waiter_for(name)
    while process and process ~= PROCESS do
      waiters[process][2] = now
      local heard = call('PUBLISH', string.gsub(META, '{.*', '') .. 'wake:' .. process, name)
      if heard > 0 or CLUSTER then
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
