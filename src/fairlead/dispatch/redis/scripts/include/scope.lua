-- The preamble of every script: the clock, the keys by name, and the scope's services as tables.
--
--   KEYS[1..5]   meta, waiters, workers, entries, onlease                    (documented in keys.py)
--   KEYS[6..]    ten per service, in the order of ARGV[2]; then windows, rated
--   ARGV[1]      now in microseconds; empty: the server's clock
--   ARGV[2]      the scope's services as known to the caller, joined by NUL
--   ARGV[3]      this process; ARGV[4] `1` on a Cluster, where PUBLISH does not count all receivers
--
-- Returns {-1, services joined by NUL} if the scope has services whose keys the caller did not pass. The caller then
-- repeats the call with the keys of all these services. Replies contain as few nested lists as possible, because the
-- server writes each list separately (5 µs). Changes are kept in tables and written once by `save`. A script changes
-- nothing if `scope.lost` is true: a key has vanished, and the rebuild will load everything from the database.

local KEYS, ARGV = KEYS, ARGV
local META, WAITERS, WORKERS, ENTRIES, ONLEASE = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
-- 2^52, added to numbers that are sorted as text, so that none is negative
--- @const MIDDLE 4503599627370496
-- The maximum number of arguments of a command; Lua's stack holds 8,000
--- @const CHUNK 4000

local call, floor, format, sub, byte, char = redis.call, math.floor, string.format, string.sub, string.byte, string.char
local pack, unpack_of = cmsgpack.pack, cmsgpack.unpack

local NONE, WIDE = {}, string.rep(' ', 65) -- NONE is never modified

local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local function split(text)
  local parts, count = {}, 0
  for part in string.gmatch(text, '[^%z]+') do
    count = count + 1
    parts[count] = part
  end
  return parts
end

local function read_set(list)
  local set = {}
  for _, name in ipairs(list) do
    set[name] = true
  end
  return set
end

-- Format a whole number so that text sorts like numbers.
local function sortable(number)
  return format('%016d', number + MIDDLE)
end

-- Whether a sorts before b, bytewise as in sorted sets. Lua's `<` depends on the server's locale.
local function before(a, b)
  local i = 1
  while true do
    local a1, a2, a3, a4, a5, a6, a7, a8 = byte(a, i, i + 7)
    local b1, b2, b3, b4, b5, b6, b7, b8 = byte(b, i, i + 7)
    if a1 ~= b1 then
      return (a1 or -1) < (b1 or -1)
    elseif a2 ~= b2 then
      return (a2 or -1) < (b2 or -1)
    elseif a3 ~= b3 then
      return (a3 or -1) < (b3 or -1)
    elseif a4 ~= b4 then
      return (a4 or -1) < (b4 or -1)
    elseif a5 ~= b5 then
      return (a5 or -1) < (b5 or -1)
    elseif a6 ~= b6 then
      return (a6 or -1) < (b6 or -1)
    elseif a7 ~= b7 then
      return (a7 or -1) < (b7 or -1)
    elseif a8 ~= b8 then
      return (a8 or -1) < (b8 or -1)
    elseif not a8 then
      return false
    end
    i = i + 8
  end
end

-- Pass numbers to commands as text where possible: the server formats Lua numbers with all digits of a double (0.2 µs
-- each).

-- One command with any number of arguments, which come in groups of `group`.
local function call_many(command, key, list, group)
  if #list > CHUNK then
    local size = CHUNK - CHUNK % (group or 1)
    for first = 1, #list, size do
      call(command, key, unpack(list, first, math.min(first + size - 1, #list)))
    end
  elseif list[1] then
    call(command, key, unpack(list))
  end
end

-- Read many fields of a hash.
local function read_many(key, names)
  if #names == 0 then
    return NONE
  end
  if #names <= CHUNK then
    return call('HMGET', key, unpack(names))
  end
  local values = {}
  for first = 1, #names, CHUNK do
    for _, value in ipairs(call('HMGET', key, unpack(names, first, math.min(first + CHUNK - 1, #names)))) do
      values[#values + 1] = value
    end
  end
  return values
end

-- Write many fields of a hash. Redis stores a small hash as a list that it searches for every field (500 users: 2.4 µs
-- each, against 0.1 in a table), until a value exceeds 64 bytes once. `new`: the hash may not exist yet.
local function write_many(key, list, new)
  if new and #list > 0 and call('HLEN', key) == 0 then
    call('HSET', key, list[1], WIDE)
  end
  call_many('HSET', key, list, 2)
end

-- `pack` makes a string of every argument and joins them (0.05 µs each), so most records are joined from these instead:
-- packed values that repeat, and what is packed before a text of a length.
--- @const FALSE '\194'
local packed = setmetatable({ [false] = FALSE, [0] = '\0', '\1', '\2', '\3' }, {
  __index = function(known, value)
    local text = pack(value)
    known[value] = text
    return text
  end,
})
local before_text = setmetatable({ [36] = '\217$' }, {
  __index = function(known, length)
    local head = length < 32 and char(160 + length) or sub(pack(string.rep(' ', length)), 1, -length - 1)
    known[length] = head
    return head
  end,
})

--- @nest
local names = split(ARGV[2])
local services, by_name, scope = {}, {}, nil

-- Values are packed one after the other, not as a list: unpacking ten into locals takes 0.1 µs, into a table 0.6 µs.

local function take_more_of_regions(service, values)
  local count = (#values - 2) / 2
  service.regions, service.weights, service.pooled, service.partial = {}, {}, {}, values[#values - 1]
  for i = 1, count, 2 do
    local name = values[i]
    service.regions[i], service.regions[i + 1] = name, values[i + 1]
    service.weights[name], service.pooled[name] = values[count + i] or nil, values[count + i + 1]
  end
end

-- A service's rules in their stored order, followed by its regions with their limits. If regions have weights or only
-- some count in the pool, there follow per region its weight or false and whether it is in the pool; then whether some
-- are not; then `true`.
local function take_rules(service, limit, fifo, paused, retries_first, ttl, cost, user_limit, ...)
  service.limit, service.fifo, service.paused, service.retries_first = limit, fifo, paused, retries_first
  service.ttl, service.cost, service.user_limit = ttl, cost, user_limit
  service.regional = select('#', ...) > 0
  service.regions = service.regional and { ... } or NONE
  service.weights, service.pooled, service.partial = NONE, NONE, false
  if service.regional and service.regions[#service.regions] == true then
    take_more_of_regions(service, service.regions)
  end
end

-- A service's state: mean, virtual times of bands 0 to 3, waiting steps by priority band 1 to 3, ready, runnable, a
-- lower bound of the leases' expiry (false: no lease), number of newcomers so far, and number of calls in the mean
-- (absent if written by an older version). For a service with regions there follow the breaker's failure limit and
-- rest, and per region its name and health (include/regions.lua).
local function take_state(
  service, mean, vt0, vt1, vt2, vt3, waiting1, waiting2, waiting3, ready, runnable, due, arrivals, measured,
  breaker, breaker_rest, ...
)
  service.mean, service.ready, service.runnable, service.due, service.arrivals = mean, ready, runnable, due, arrivals
  service.measured = measured or 0
  service.vt = { [0] = vt0, vt1, vt2, vt3 }
  service.waiting = { waiting1, waiting2, waiting3 }
  service.breaker, service.breaker_rest = breaker or 0, breaker_rest or 0
  if service.regional then
    service.health = {}
    for i = 1, select('#', ...), 6 do
      local region, failures, rest, over, probe, latency = select(i, ...)
      service.health[region] = { failures, rest, over, probe, latency }
    end
  end
end

local function take_new_state(service)
  take_state(service, false, 0, 0, 0, 0, 0, 0, 0, false, false, false, 0, 0, service.breaker,
    service.breaker_rest)
end

local function stored_state(service)
  local vt, waiting = service.vt, service.waiting
  if service.regional then
    local health = {}
    for region, values in pairs(service.health) do
      health[#health + 1] = region
      for i = 1, 5 do
        health[#health + 1] = values[i]
      end
    end
    return pack(service.mean, vt[0], vt[1], vt[2], vt[3], waiting[1], waiting[2], waiting[3], service.ready,
      service.runnable, service.due, service.arrivals, service.measured, service.breaker, service.breaker_rest,
      unpack(health))
  end
  return pack(service.mean, vt[0], vt[1], vt[2], vt[3], waiting[1], waiting[2], waiting[3], service.ready,
    service.runnable, service.due, service.arrivals, service.measured)
end

-- Count the keys of a service that exist, at the end of every change, without the waiting costs, on which only estimates
-- depend. An absent key may be a lost one or an empty one, because Redis deletes a key with its last member.
local function count_keys(service)
  return call('EXISTS', unpack(KEYS, service.base + 1, service.base + 9))
end

local function counted_slots(service)
  local taken = 0
  for _, count in pairs(service.taken) do
    taken = taken + count
  end
  return format('%d %d %d', service.leased, service.held, taken)
end

-- Append the META fields of a changed service, once all its keys are written. `kept` is the number of existing keys,
-- the state, and the number of taken slots. Processes of older versions write the state without updating `kept`, which
-- is then ignored, or write `kept` without the slots.
local function add_state(fields, service)
  local n, state = #fields, stored_state(service)
  fields[n + 1], fields[n + 2] = 'state:' .. service.name, state
  fields[n + 3], fields[n + 4] = 'kept:' .. service.name, count_keys(service) .. state .. counted_slots(service)
  if service.costs_changed then
    fields[n + 5], fields[n + 6] = 'costs:' .. service.name, pack(unpack(service.costs))
  end
end

-- Whether a service has lost its state, or a key or a slot since the state was written.
local function lost_data(service, state, kept)
  if not kept then
    return false
  elseif not state then
    return true
  elseif sub(kept, 2, #state + 1) ~= state then
    return false
  end
  local slots = sub(kept, #state + 2)
  return byte(kept) - 48 ~= count_keys(service) or slots ~= '' and slots ~= counted_slots(service)
end

-- Whether the scope has lost a key shared by its services. Every change writes META.
local function lost_shared_key()
  if not scope.epoch and call('EXISTS', META) == 0 then
    return call('EXISTS', ENTRIES, ONLEASE) > 0
  end
  local waiting, leased = 0, 0
  for _, service in ipairs(services) do
    waiting = waiting + service.waiting[1] + service.waiting[2] + service.waiting[3]
    leased = leased + service.leased
  end
  if waiting > 0 and leased > 0 then
    return call('EXISTS', ENTRIES, ONLEASE) < 2
  end
  return waiting > 0 and call('EXISTS', ENTRIES) == 0 or leased > 0 and call('EXISTS', ONLEASE) == 0
end

-- Whether META lacks a field that configure.lua writes: the version together with the list of services, the rules of
-- each of these, and the limit of a pool. Without them a scope has no slots, no services or no limit.
local function lost_rules(listed, with_rules)
  if not listed or not scope.version then
    return listed or scope.version or next(with_rules)
  end
  for _, name in ipairs(scope.members) do
    if by_name[name] and not with_rules[name] then
      return true
    end
  end
  return not scope.pool_limit and scope.members[1] and string.find(META, '{pool:', 1, true)
end

local function expires_by(service, time)
  if not service.due or time < service.due then
    service.due = time
  end
end

local function count_slots(service)
  local k = service.keys
  service.leased, service.held = call('HLEN', k.leases), call('HLEN', k.holds)
  service.taken = service.regional and {} or NONE
  for i = 1, #service.regions, 2 do
    local region = service.regions[i]
    service.taken[region] = call('ZLEXCOUNT', k.slots, '[' .. region .. '\0', '(' .. region .. '\1')
  end
end

-- The state of a pool: virtual times by band, tags of its services by band, services that were passed over, and
-- services granted a step outside its slots since the last grant of a slot (absent if written by an older version).
local function new_pool()
  return { { 0, 0, 0, 0 }, { {}, {}, {}, {} }, {}, {} }
end

-- Whether a call in this region takes a slot of the pool.
local function in_pool(service, region)
  return not service.partial or service.pooled[region] == true
end

-- How many slots of the pool a service uses.
local function taken_of_pool(service)
  if not service.partial then
    return service.leased + service.held
  end
  local taken = 0
  for region, counts in pairs(service.pooled) do
    taken = taken + (counts and service.taken[region] or 0)
  end
  return taken
end

-- All fields are set here: a table that grows later is allocated twice.
local function new_service(name, base)
  return {
    name = name, base = base, users = {}, known = false, stale = {}, touched = false,
    keys = {
      users = KEYS[base + 1], heads = KEYS[base + 2], line = KEYS[base + 3], seqs = KEYS[base + 4],
      idle = KEYS[base + 5], leases = KEYS[base + 6], holds = KEYS[base + 7], ends = KEYS[base + 8],
      slots = KEYS[base + 9], costs = KEYS[base + 10],
    },
    joining = {}, joining_seqs = {}, new_leases = {}, new_slots = {}, gone = {},
    limit = 0, fifo = false, paused = false, retries_first = false, ttl = 15000000, cost = 1000000, user_limit = false,
    regional = false, regions = NONE, weights = NONE, pooled = NONE, partial = false, leased = 0, held = 0,
    taken = NONE,
    breaker = 0, breaker_rest = 0, health = NONE,
    costs = false, stored_costs = false, costs_changed = false, waiting_costs = false, waiting_stated = false,
    rates = false, windows = false, texts = false,
    mean = false, measured = 0, ready = false, runnable = false, due = false, vt = NONE, waiting = NONE,
  }
end

local function load_scope()
  local fields = { 'epoch', 'open', 'services', 'pool_limit', 'pool', 'counter', 'version', 'rates' }
  for i, name in ipairs(names) do
    local n = 5 + 4 * i
    fields[n], fields[n + 1], fields[n + 2] = 'rules:' .. name, 'state:' .. name, 'kept:' .. name
    fields[n + 3] = 'costs:' .. name
  end
  fields[#fields + 1] = 'unmet'
  local read = read_many(META, fields)
  local pool_limit, counter = tonumber(read[4]), tonumber(read[6]) or 0
  scope = {
    epoch = tonumber(read[1]), open = read[2] == '1', closed = read[2] == '0', lost = read[2] == 'lost',
    members = read[3] == ARGV[2] and names or split(read[3] or ''), pool_limit = pool_limit,
    pool = read[5] and unpack_of(read[5]) or pool_limit and new_pool() or false,
    counter = counter, counter_read = counter, version = tonumber(read[7]),
    rates = read[8] and unpack_of(read[8]) or false, unmet = read[#fields] and unpack_of(read[#fields]) or false,
    found_nothing = false, worn_out = false,
  }
  if scope.pool then
    scope.pool[4] = scope.pool[4] or {}
  end
  local lost, with_rules = false, {}
  for i, name in ipairs(names) do
    local service, rules, state = new_service(name, 10 * i - 5), read[5 + 4 * i], read[6 + 4 * i]
    if rules then
      take_rules(service, unpack_of(rules))
      with_rules[name] = true
    end
    if state then
      take_state(service, unpack_of(state))
    else
      take_new_state(service)
    end
    count_slots(service)
    service.stored_costs = read[8 + 4 * i]
    services[i], by_name[name] = service, service
    if not read[6] and service.leased > 0 then
      -- The counter was lost, or the leases were granted by another scope. Seconds are more than any count before, so
      -- that no name is given twice.
      scope.counter = floor(now / 1000000)
    end
    lost = lost or lost_data(service, state, read[7 + 4 * i])
  end
  if scope.rates and scope.rates.n > 0 then
    lost = lost or call('HLEN', KEYS[#KEYS - 1]) ~= scope.rates.n or call('ZCARD', KEYS[#KEYS]) ~= scope.rates.n
  end
  if not scope.lost and (lost or lost_rules(read[3], with_rules) or lost_shared_key()) then
    -- Slots may wrongly be counted as free: grant and change nothing until the rebuild.
    scope.open, scope.closed, scope.lost = false, false, true
    call('HSET', META, 'open', 'lost')
  end
end

load_scope()
local undeclared = {}
for _, name in ipairs(scope.members) do
  if not by_name[name] then
    undeclared[#undeclared + 1] = name
  end
end
if #undeclared > 0 then
  return { -1, table.concat(undeclared, '\0') }
end

local rates = false -- the functions of include/rates.lua, in a scope with rates

local function touch(service)
  service.touched = true
end

-- The services that share the pool's limit; empty without a pool.
local pooled = {}
if scope.pool_limit then
  for _, name in ipairs(scope.members) do
    pooled[#pooled + 1] = by_name[name]
  end
end
