-- restore: add leases, under their old names and with a full TTL, and holds to the scope that is being rebuilt.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]            the rebuild's epoch
--   ARGV[6]            the last digits of the scope's lease names
--   ARGV[7]            the database's clock in µs, by which the times below are given
--   ARGV[8]            the number of leases; then per lease: name, job, step, run, service, user, worker, granted in
--                      µs, region or empty, weight, band, cost in millionths or empty, group as in an offer (packed;
--                      empty: none), plan or empty
--   then per hold:     key, job, service, region or empty, until in µs, band
--
-- Returns {1 if the scope is closed by this rebuild else 0, ''}. Nothing is runnable in a closed scope.
--- @include scope
--- @include costs
--- @include queues
--- @include rates
--- @include pick
--- @include grant
--- @include holds
--- @include save

if not scope.closed or scope.epoch ~= tonumber(ARGV[5]) then
  return { 0, '' }
end

-- Continue the counter of lease names after the number of a restored lease of this scope.
local function advance_counter(name)
  local counter = string.match(name, ':(%d+)$')
  if counter and #counter > #ARGV[6] and sub(counter, -#ARGV[6]) == ARGV[6] then
    scope.counter = math.max(scope.counter, tonumber(sub(counter, 1, -#ARGV[6] - 1)))
  end
end

local ahead = now - tonumber(ARGV[7])
local jobs, lease_names, runs, recorded, seen, at = {}, {}, {}, {}, {}, 9
for _ = 1, tonumber(ARGV[8]) do
  local name, service = ARGV[at], by_name[ARGV[at + 4]]
  if not seen[name] and call('HEXISTS', service.keys.leases, name) == 0 then
    seen[name] = true
    local job, step, run = ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
    local user, worker, granted = user_of(service, ARGV[at + 5]), ARGV[at + 6], tonumber(ARGV[at + 7])
    local region, weight, band = ARGV[at + 8] ~= '' and ARGV[at + 8], tonumber(ARGV[at + 9]), tonumber(ARGV[at + 10])
    granted = granted > 0 and math.min(now, granted + ahead) or now
    local group, w1, l1, w2, l2 = unpack_of(ARGV[at + 12])
    if group or user[LANES] == '@' then
      scope.groups().place(service, user, group, { w1, l1, w2, l2 })
    end
    user[WEIGHT], user[RUNNING] = weight, user[RUNNING] + 1
    park_or_unpark(service, user)
    if group and not service.fifo then
      scope.groups().count_running(service, user, 1)
    end
    -- The charge is unknown, so the user is charged for the whole call when it ends.
    local charged, estimate, expires = 0, 0, now + service.ttl
    expires_by(service, expires)
    touch(service)
    local stored = pack(job, step, run, user[ID], worker, granted, region, charged, weight, band, estimate, expires)
    if rates then
      local mask, units, path = rates.granted(service, user[ID], region, tonumber(ARGV[at + 11]), ARGV[at + 13])
      stored = mask and stored .. pack(mask, units, false, false) .. (path and pack(path) or '') or stored
    end
    keep_lease(service, name, region, stored)
    advance_counter(name)
    if recorded[job] then
      record_granted({ job }, { name }, { run })
    else
      recorded[job] = true
      jobs[#jobs + 1], lease_names[#lease_names + 1], runs[#runs + 1] = job, name, run
    end
  end
  at = at + 14
end
record_granted(jobs, lease_names, runs)
for i = at, #ARGV, 6 do
  keep_hold(i, ahead)
end
return { 1, wake(save()), rates_due() }
