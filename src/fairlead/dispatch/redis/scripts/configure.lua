-- configure: take new rules, unless older than the present ones. Lines stay; services that the rules no longer have
-- get a limit of nothing. Users are set aside or let back by a new user limit.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]   version
--   ARGV[6]   the pool's limit, or empty
--   ARGV[7]   the scope's services by these rules, joined by NUL
--   ARGV[8..] per service of these: name, rules as JSON {limit, fifo, paused, retries_first, ttl and cost in µs,
--             user_limit or absent, regions as a list of [name, limit] by name}
--
-- Returns {0, services this process is to wake for}.
--- @include scope
--- @include lines
--- @include grant
--- @include save

local version = tonumber(ARGV[5])
if scope.version and version < scope.version then
  return { 0, {} }
end

local function each_user(service, visit)
  each_stored_user(service, function(user_id) visit(user_of(service, user_id)) end)
end

-- Lines for another order, or other lanes. Fair shares begin anew.
local function sort_anew(service)
  local k = service.keys
  call('UNLINK', k.heads, k.line, k.seqs, k.idle)
  service.vt = { [0] = 0, 0, 0, 0 }
  each_user(service, function(user)
    user.tags, user.lanes = { [0] = false, false, false, false }, {}
  end)
  local cursor = '0'
  repeat
    local page = call('HSCAN', ENTRIES, cursor, 'COUNT', 1000)
    cursor = page[1]
    for i = 1, #page[2], 2 do
      local entry = read_entry(page[2][i], page[2][i + 1])
      -- A page may bring an entry that an earlier one brought: a step that is in line already is not counted again.
      if entry.service == service.name then
        local _, lane = where(service, entry)
        put_in_line(service)
        local member = line_of(lane, entry.user) .. order_key(service, entry) .. entry.job
        if not call('ZSCORE', k.line, member) then
          join_line(service, entry, user_of(service, entry.user))
        end
      end
    end
  until cursor == '0'
end

local function shape(service)
  return (service.fifo and 'fifo ' or 'fair ') .. (service.rules.retries_first and 'first ' or '')
    .. (service.regional and 'regions' or '')
end

local fields = { 'version', ARGV[5], 'services', ARGV[7] }
local function change(service, json, rules)
  local old_shape, old_limit = shape(service), service.rules.user_limit
  take_rules(service, rules)
  count_slots(service)
  if shape(service) ~= old_shape then
    sort_anew(service)
  end
  if rules.user_limit ~= old_limit then
    each_user(service, function(user) park_or_unpark(service, user) end)
  end
  fields[#fields + 1] = 'rules:' .. service.name
  fields[#fields + 1] = json
  touch(service)
end

local wanted = {}
for i = 8, #ARGV, 2 do
  wanted[ARGV[i]] = ARGV[i + 1]
end
for _, service in ipairs(services) do
  local json = wanted[service.name]
  if json then
    change(service, json, cjson.decode(json))
  elseif service.limit ~= 0 then
    service.rules.limit = 0
    change(service, cjson.encode(service.rules), service.rules)
  end
end

scope.pool_limit, pooled = tonumber(ARGV[6]), {}
if scope.pool_limit then
  fields[#fields + 1] = 'pool_limit'
  fields[#fields + 1] = ARGV[6]
  for _, name in ipairs(split(ARGV[7])) do
    pooled[#pooled + 1] = by_name[name]
  end
else
  call('HDEL', META, 'pool_limit')
end
call('HSET', META, unpack(fields))
return { 0, wake(save()) }
