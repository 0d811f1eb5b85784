-- offer: put steps into line, or move them; an offer that is not newer than what is there does nothing.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5..]          per offer: job, and the rest of it as it is stored (entries in keys.py)
--
-- Returns {how many were newer, services this process is to wake for, joined by NUL}.
--- @include scope
--- @include lines
--- @include regions
--- @include moves
--- @include pick
--- @include save

local jobs, count = {}, 0
for i = 5, #ARGV, 2 do
  count = count + 1
  jobs[count] = ARGV[i]
end
local waiting, leased, offered, written = read_many(ENTRIES, jobs), read_many(ONLEASE, jobs), {}, {}

local function run_of(packed)
  local _, _, _, _, _, _, run = unpack_of(packed)
  return run
end

-- Whether an offer is newer than what waits, and than the leases that are noted of its job.
local function is_newer(packed, stored, noted)
  local run = run_of(packed)
  if stored and run_of(stored) >= run then
    return false
  end
  local of_leases = { unpack_of(noted or '') }
  for i = 2, #of_leases, 2 do
    if of_leases[i] >= run then
      return false
    end
  end
  return true
end

local function put_into_line(job, packed, stored)
  local seq, user_id, name, band, rank, _, _, _, region, weight = unpack_of(packed)
  local service = by_name[name]
  local user = user_of(service, user_id)
  user[WEIGHT] = weight
  touch(service)
  if not stored then
    join(service, user, job, seq, band, rank, region)
    return
  end
  local present = read_entry(job, stored)
  local old = by_name[present.service]
  replace_in_line(old, present, service, read_entry(job, packed), user)
  forget_if_idle(old, read_user(old, present.user))
  touch(old)
end

local newer = 0
for i = 1, count do
  local job, packed = jobs[i], ARGV[4 + 2 * i]
  local stored = offered[job] or waiting[i]
  if not (stored or leased[i]) or is_newer(packed, stored, leased[i]) then
    put_into_line(job, packed, stored)
    offered[job] = packed
    newer = newer + 1
    written[2 * newer - 1], written[2 * newer] = job, packed
  end
end
write_many(ENTRIES, written, true)
return { newer, wake(save()) }
