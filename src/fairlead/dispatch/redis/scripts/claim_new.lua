-- claim_new: grant new steps to a worker, each only if it is the next one of its service now. A step that is not granted
-- leaves no trace. Services in pools, with regions or with FIFO order are left to claims.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]            the version of the caller's rules, or empty
--   ARGV[6]            worker
--   ARGV[7]            the last digits of the scope's lease names
--   ARGV[8..]          per step: job, and its other values as they are stored (entries in keys.py)
--
-- Returns {0, services for which to wake this process, joined by NUL, rates_due(), now}, then four values per step: the
-- name of its lease, when that expires as text, the charge and the band; the name is empty if it is not granted.
--- @const HEADER 4
--- @include scope
--- @include outdated
if scope.lost or scope.pool_limit then
  return { 0, '', '', now } -- if it is lost, the rebuild loads the state from the database
end
--- @include costs
--- @include queues
--- @include rates
--- @include moves
--- @include pick
--- @include grant
--- @include holds
--- @include save

end_holds(now)
if rates then
  rates.advance()
end

local BANDS = { 0, 1, 2, 3 }
local worker_name, first_of_name = ARGV[6], format('%d:', scope.epoch or 0)
local reply, jobs, lease_names, runs, taken = { 0, '', '', now }, {}, {}, {}, {}

local function grant(service, chosen)
  local entry, user, estimate, charged = take(service, chosen, taken)
  local mask, units, group
  if rates then
    mask, units, group = rates.granted(service, user[ID], false, entry.cost, entry.plan)
  end
  scope.counter = scope.counter + 1
  local name, expires, n = first_of_name .. scope.counter .. ARGV[7], now + service.ttl, #jobs + 1
  local stored = pack(entry.job, entry.step, entry.run, user[ID], worker_name, now, false, charged, user[WEIGHT],
    chosen.band, estimate, expires)
  if mask or entry.cost then -- as in exchange.lua
    stored = stored .. pack(mask or false, units or false, false, entry.cost or false)
    stored = group and stored .. pack(group) or stored
  end
  keep_lease(service, name, false, stored)
  expires_by(service, expires)
  jobs[n], lease_names[n], runs[n] = entry.job, name, entry.run
  return name, format('%d', expires), charged
end

-- Queue a step, and grant it or remove it.
local function claim(service, job, packed)
  local entry = read_entry(job, packed)
  local user = user_of(service, entry.user)
  local group, w1, l1, w2, l2 = unpack(entry.group or NONE, 1, 5)
  user[WEIGHT] = entry.weight
  if group or user[LANES] == '@' then
    scope.groups().place(service, user, group, { w1, l1, w2, l2 })
  end
  touch(service)
  join(service, user, job, entry.seq, entry.band, entry.rank, entry.region, entry.cost)
  call('HSET', ENTRIES, job, packed)
  refresh(service)
  local chosen = pick(service, BANDS)
  if chosen and sub(first_queued(service, chosen.lane, chosen.user), 18) == job then
    local name, expires, charged = grant(service, chosen)
    return name, expires, charged, chosen.band
  end
  taken[#taken + 1] = job
  leave(service, entry)
  forget_if_idle(service, user)
  return '', '', 0, 0
end

for i = 8, #ARGV, 2 do
  local job, packed, n = ARGV[i], ARGV[i + 1], #reply
  local _, _, name = unpack_of(packed)
  local service = (not outdated or outdated[name]) and by_name[name]
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = '', '', 0, 0
  if service and not service.regional and not service.fifo and call('HEXISTS', ENTRIES, job) == 0
    and call('HEXISTS', ONLEASE, job) == 0 then
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = claim(service, job, packed)
  end
end
call_many('HDEL', ENTRIES, taken)
record_granted(jobs, lease_names, runs)
reply[2], reply[3] = wake(save()), rates_due()
return reply
