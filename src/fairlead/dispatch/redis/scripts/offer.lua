-- offer: add steps to the queue, or move queued steps. An offer is ignored if the same or a newer run of the job is
-- queued or leased.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]            the version of the caller's rules, or empty
--   ARGV[6..]          per offer: job, and its other values as they are stored (entries in keys.py)
--
-- Returns {number of offers not ignored, services for which to wake this process, joined by NUL, rates_due()}; or
-- {-2, ''}, without any change, if newer rules than the caller's have moved a service out of this scope.
--- @include scope
local function service_of(packed)
  local _, _, name = unpack_of(packed)
  return name
end

--- @include outdated
for i = 7, outdated and #ARGV or 0, 2 do
  if not outdated[service_of(ARGV[i])] then
    return { -2, '' }
  end
end

if scope.lost then
  return { 0, '' } -- the rebuild loads the state from the database
end
--- @include costs
--- @include queues
--- @include rates
--- @include moves
--- @include pick
--- @include save

local jobs, count = {}, 0
for i = 6, #ARGV, 2 do
  count = count + 1
  jobs[count] = ARGV[i]
end
local waiting, leased, offered, written = read_many(ENTRIES, jobs), read_many(ONLEASE, jobs), {}, {}

local function run_of(packed)
  local _, _, _, _, _, _, run = unpack_of(packed)
  return run
end

-- Whether an offer is newer than the queued step and the recorded leases of its job.
local function is_newer(packed, stored, recorded)
  local run = run_of(packed)
  if stored and run_of(stored) >= run then
    return false
  end
  local of_leases = { unpack_of(recorded or '') }
  for i = 2, #of_leases, 2 do
    if of_leases[i] >= run then
      return false
    end
  end
  return true
end

local function enqueue(job, packed, stored)
  local seq, user_id, name, band, rank, _, _, cost, region, weight, group, w1, l1, w2, l2 = unpack_of(packed)
  local service = by_name[name]
  local user = user_of(service, user_id)
  user[WEIGHT] = weight
  if group or user[LANES] == '@' then
    scope.groups().place(service, user, group, { w1, l1, w2, l2 })
  end
  touch(service)
  if not stored then
    join(service, user, job, seq, band, rank, region, cost)
    return
  end
  local present = read_entry(job, stored)
  local old = by_name[present.service]
  replace_queued(old, present, service, read_entry(job, packed), user)
  forget_if_idle(old, read_user(old, present.user))
  touch(old)
end

local newer = 0
for i = 1, count do
  local job, packed = jobs[i], ARGV[5 + 2 * i]
  local stored = offered[job] or waiting[i]
  if not (stored or leased[i]) or is_newer(packed, stored, leased[i]) then
    enqueue(job, packed, stored)
    offered[job] = packed
    newer = newer + 1
    written[2 * newer - 1], written[2 * newer] = job, packed
  end
end
write_many(ENTRIES, written, true)
return { newer, wake(save()), rates_due() }
