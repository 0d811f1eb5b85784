-- What every script begins with: the clock, the keys by name, and the scope's services as tables.
--
--   KEYS[1..5]   meta, waiters, workers, entries, onlease                    (see keys.py for what is in them)
--   KEYS[6..]    ten per service, in the order of ARGV[2]
--   ARGV[1]      now in microseconds; empty: the server's own clock
--   ARGV[2]      the scope's services, as the caller knows them, joined by NUL
--   ARGV[3]      this process; ARGV[4] `1` on a Cluster, where PUBLISH cannot say whether anyone heard it
--
-- Answers {-1, services} when the scope has services that the caller did not declare keys for: it asks again with them.
-- Everything changed is kept in tables, and written once by `save`.

local META, WAITERS, WORKERS, ENTRIES, ONLEASE = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local MIDDLE = 4503599627370496 -- 2^52: added to numbers that are sorted as text, so that none is negative
local CHUNK = 4000 -- arguments of one call; Lua's stack has room for 8,000

local call, floor, format, sub = redis.call, math.floor, string.format, string.sub
local pack, unpack_of = cmsgpack.pack, cmsgpack.unpack

local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local function split(text)
  local parts = {}
  for part in string.gmatch(text, '[^%z]+') do
    parts[#parts + 1] = part
  end
  return parts
end

-- A whole number as text that sorts like the number.
local function sortable(number)
  return format('%016d', number + MIDDLE)
end

-- Whether one text sorts before another, byte by byte as sorted sets do: Lua's own `<` goes by the server's locale.
local function before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then
      return x < y
    end
  end
  return #a < #b
end

-- One call with a list of arguments of any length, which come in groups of `group`.
local function call_many(command, key, list, group)
  local size = CHUNK - CHUNK % (group or 1)
  for first = 1, #list, size do
    call(command, key, unpack(list, first, math.min(first + size - 1, #list)))
  end
end

-- Several fields of a hash, as many as there are names.
local function read_many(key, names)
  local values = {}
  for first = 1, #names, CHUNK do
    for _, value in ipairs(call('HMGET', key, unpack(names, first, math.min(first + CHUNK - 1, #names)))) do
      values[#values + 1] = value
    end
  end
  return values
end

local names = split(ARGV[2])
local services, by_name = {}, {}
local scope = {}

local DEFAULT_RULES = { limit = 0, ttl = 15000000, cost = 1000000, regions = {} }

local function new_state()
  return { false, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
end

-- A service's state: mean, virtual times of bands 0 to 3, waiting by offered band 1 to 3, ready, runnable.
local function take_state(service, state)
  service.mean = state[1]
  service.vt = { [0] = state[2], state[3], state[4], state[5] }
  service.waiting = { state[6], state[7], state[8] }
  service.ready, service.runnable = state[9] == 1, state[10] == 1
end

local function take_rules(service, rules)
  service.rules = rules
  service.limit, service.fifo, service.paused = rules.limit, rules.fifo, rules.paused
  service.regional = #rules.regions > 0
end

local function count_slots(service)
  local k = service.keys
  service.leased, service.held = call('HLEN', k.leases), call('HLEN', k.holds)
  service.taken = {}
  for _, region in ipairs(service.rules.regions) do
    service.taken[region[1]] = call('ZLEXCOUNT', k.slots, '[' .. region[1] .. '\0', '(' .. region[1] .. '\1')
  end
end

local function load_scope()
  local fields = { 'epoch', 'open', 'services', 'pool_limit', 'pool', 'counter', 'version' }
  for _, name in ipairs(names) do
    fields[#fields + 1] = 'rules:' .. name
    fields[#fields + 1] = 'state:' .. name
  end
  local read = read_many(META, fields)
  scope.epoch, scope.open = tonumber(read[1]), read[2] == '1'
  scope.closed = read[2] == '0'
  scope.members = read[3] and split(read[3]) or {}
  scope.pool_limit = tonumber(read[4])
  scope.pool = read[5] and unpack_of(read[5]) or { { 0, 0, 0, 0 }, { {}, {}, {}, {} }, {} }
  scope.counter = tonumber(read[6]) or 0
  scope.version = tonumber(read[7])
  for i, name in ipairs(names) do
    local base = 5 + (i - 1) * 10
    local service = {
      name = name, users = {}, touched = false,
      keys = {
        users = KEYS[base + 1], heads = KEYS[base + 2], line = KEYS[base + 3], seqs = KEYS[base + 4],
        idle = KEYS[base + 5], leases = KEYS[base + 6], expiry = KEYS[base + 7], holds = KEYS[base + 8],
        ends = KEYS[base + 9], slots = KEYS[base + 10],
      },
      joining = {}, joining_seqs = {}, new_leases = {}, new_expiries = {}, new_slots = {}, gone = {},
    }
    local rules, state = read[6 + 2 * i], read[7 + 2 * i]
    take_rules(service, rules and cjson.decode(rules) or DEFAULT_RULES)
    take_state(service, state and unpack_of(state) or new_state())
    count_slots(service)
    services[i], by_name[name] = service, service
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
  return { -1, undeclared }
end

local function touch(service)
  service.touched = true
end

-- The services that share the pool's limit; a scope without a pool has none.
local pooled = {}
if scope.pool_limit then
  for _, name in ipairs(scope.members) do
    pooled[#pooled + 1] = by_name[name]
  end
end
