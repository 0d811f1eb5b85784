-- exchange: give back slots and take the next steps, as one operation.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]   worker
--   ARGV[6]   room: how many steps to take from this scope
--   ARGV[7]   the claim's services of this scope, joined by NUL
--   ARGV[8]   the claim's bands, as digits in order
--   ARGV[9]   `1` and the claim's regions joined by NUL; empty: any
--   ARGV[10]  `1`: this is the whole claim, so whom to wake is decided here. Else the caller decides, when it knows
--   ARGV[11]  `1`: this process is among the scope's waiters already; `-`: it is not to be
--   ARGV[12]  the claim's state from its last call to this scope, or empty
--   ARGV[13]  the name's last digits: which scope a lease is of
--   ARGV[14]  what may be granted: empty: anything; `turns`: turns, as long as one is next; else this job alone
--   ARGV[15..]  the releases, as release_all in include/grant.lua
--
-- Returns {0, turned, runnable, left to others, state, more, wakes, waits, others wait, now, services}, then leases:
--   turned, runnable, left to others   services: made runnable by this, runnable now, whose workers slots were left for
--   more      1 if another step could be taken by this claim
--   wakes     services this process is to wake for, if the whole claim
--   waits     1 if this process is now among the scope's waiters;  others wait: 1 if other processes are
--   services  of the leases: name, and when they expire
--   leases    ten values each: name, job, step, run, number of its service, user, region, charge, weight, band
-- Services are joined by NUL.
--- @const ANSWERS 11
--- @include scope
--- @include lines
--- @include regions
--- @include pick
--- @include grant
--- @include holds
--- @include save

local worker_name, room = ARGV[5], tonumber(ARGV[6])
local whole, waits_here = ARGV[10] == '1', ARGV[11] == '1'
local claimed = split(ARGV[7])
local worker = { name = worker_name, services = read_set(claimed), bands = { 0 } }
for digit in string.gmatch(ARGV[8], '%d') do
  worker.bands[#worker.bands + 1] = tonumber(digit)
end
local regions = ARGV[9] ~= '' and split(sub(ARGV[9], 2)) or false
worker.regions = regions and read_set(regions) or nil

if not whole and ARGV[11] == '' then
  -- Whether the claim will leave it with room is not known yet: the caller takes it off the list again if not.
  call('HSET', WAITERS, PROCESS, pack({ now, now, worker.services }))
  waits_here = true
end

release_all(15)
end_holds(now)
for _, service in ipairs(services) do
  refresh(service)
end

local answer, count, taken, granted = { 0, '', '', '', '', 0, '', 0, 0, now, '' }, 0, {}, {}
local jobs, lease_names, runs, of_services, number_of = {}, {}, {}, {}, {}

-- What the leases of a service have in common is answered once.
local function first_lease(service)
  local n, expires = #of_services, now + service.ttl
  of_services[n + 1], of_services[n + 2] = service.name, format('%d', expires)
  number_of[service], granted[service.name] = n / 2, true
  expires_by(service, expires)
  touch(service)
  return n / 2
end

local first_of_name = format('%d:', scope.epoch or 0)
local function issue(service, job, step, run, user, estimate, charged, band, region)
  local n, user_id, weight, expires = ANSWERS + 10 * count, user[ID], user[WEIGHT], now + service.ttl
  count, scope.counter = count + 1, scope.counter + 1
  local name = first_of_name .. scope.counter .. ARGV[13]
  keep_lease(service, name, region,
    pack(job, step, run, user_id, worker_name, now, region, charged, weight, band, estimate, expires))
  jobs[count], lease_names[count], runs[count] = job, name, run
  answer[n + 1], answer[n + 2], answer[n + 3], answer[n + 4] = name, job, step, run
  answer[n + 5], answer[n + 6], answer[n + 7] = number_of[service] or first_lease(service), user_id, region
  answer[n + 8], answer[n + 9], answer[n + 10] = charged, weight_text(weight), band
end

-- What only some scopes need is made only there: to make a function costs 0.3 µs in every call.
local single, passing, left = by_name[claimed[1]], {}, {}
local wanted, admits = ARGV[14], nil
if wanted ~= '' then
  admits = function(service, chosen)
    local job = sub(first_in_line(service, chosen.lane, chosen.user), 18)
    return job == wanted or (wanted == 'turns' and #job == 36 and sub(job, 15, 15) == '8') -- as domain/turns.py
  end
end
if scope.pool_limit then
  --- @include pool
  call('HSET', WORKERS, 'w:' .. worker_name, pack({ claimed, worker.bands, regions, now }))
  local dealings = { left = {}, left_to = {}, worker = worker, rivals = rivals_of(worker_name) }
  if ARGV[12] ~= '' then
    local state = unpack_of(ARGV[12])
    dealings.left, dealings.left_to = state[1], state[2]
  end
  local service, chosen = nil, nil
  if room > 0 then
    service, chosen = next_of_pool(dealings)
  end
  while chosen and (not admits or admits(service, chosen)) do
    local entry, user, estimate, charged = take(service, chosen, taken)
    pool_granted(chosen.band, service, chosen.region, estimate)
    issue(service, entry.job, entry.step, entry.run, user, estimate, charged, chosen.band, chosen.region or false)
    chosen = nil
    if count < room then
      service, chosen = next_of_pool(dealings)
    end
  end
  if next(dealings.left) then
    for _, option in ipairs(options_of(dealings, worker)) do
      passing[option.service.name] = true
    end
    for name in pairs(dealings.left) do
      left[#left + 1] = name
    end
  end
  call('HSET', WORKERS, 's:' .. worker_name, ARGV[11] == '-' and 0 or math.max(0, room - count))
  answer[5] = pack({ dealings.left, dealings.left_to })
elseif single and (single.regional or admits) then
  -- One step after the other: each grant may change whose turn is next.
  while count < room do
    local chosen = pick(single, worker.bands, worker.regions)
    if not chosen or (admits and not admits(single, chosen)) then
      break
    end
    local entry, user, estimate, charged = take(single, chosen, taken)
    issue(single, entry.job, entry.step, entry.run, user, estimate, charged, chosen.band, chosen.region or false)
  end
elseif single then
  --- @include many
  take_many(single, worker.bands, room, issue)
end
local more = 0
if not whole and count >= room then
  local dry = scope.pool_limit and pool_free() <= 0
  for _, name in ipairs(claimed) do
    local service = by_name[name]
    if service then
      refresh(service)
      if pick(service, worker.bands, worker.regions, dry) then
        more = 1
      end
    end
  end
end
call_many('HDEL', ENTRIES, taken)
note_granted(jobs, lease_names, runs)

local turned, turned_list, runnable = save(passing), {}, {}
for name in pairs(turned) do
  turned_list[#turned_list + 1] = name
end
for _, service in ipairs(services) do
  if service.runnable then
    runnable[#runnable + 1] = service.name
  end
end
answer[2], answer[3] = table.concat(turned_list, '\0'), table.concat(runnable, '\0')
answer[4], answer[6], answer[11] = table.concat(left, '\0'), more, table.concat(of_services, '\0')
if not whole then
  answer[8] = waits_here and 1 or 0
  answer[9] = call('HLEN', WAITERS) > call('HEXISTS', WAITERS, PROCESS) and 1 or 0
  return answer
end

-- Before anyone is woken: who is full does not wait, and who has room does.
local spare = ARGV[11] == '-' and 0 or math.max(0, room - count)
if spare > 0 and not waits_here then
  call('HSET', WAITERS, PROCESS, pack({ now, now, worker.services }))
elseif spare == 0 and waits_here then
  call('HDEL', WAITERS, PROCESS)
end
for _, name in ipairs(left) do
  granted[name] = true
end
if count > 0 and spare == 0 then
  for name in pairs(worker.services) do
    granted[name] = true
  end
end
for _, name in ipairs(runnable) do
  if granted[name] then
    turned[name] = true
  end
end
answer[7], answer[8] = wake(turned), spare > 0 and 1 or 0
return answer
