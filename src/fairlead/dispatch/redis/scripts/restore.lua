-- restore: while closed by this rebuild, put back leases under their names, with a full TTL from now, and holds.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]            the rebuild's epoch
--   ARGV[6]            the name's last digits: which scope a lease is of
--   ARGV[7]            how many leases; then per lease: name, job, step, run, service, user, worker, granted in µs,
--                      region or empty, weight, band
--   then per hold:     key, job, service, region or empty, until in µs, band
--
-- Returns {1 if it is this rebuild's to do else 0, ''}: nothing is runnable in a closed scope.
--- @include scope
--- @include lines
--- @include regions
--- @include pick
--- @include grant
--- @include holds
--- @include save

if not scope.closed or scope.epoch ~= tonumber(ARGV[5]) then
  return { 0, '' }
end

-- New names go on behind a restored one of this scope.
local function count_on(name)
  local counter = string.match(name, ':(%d+)$')
  if counter and #counter > #ARGV[6] and sub(counter, -#ARGV[6]) == ARGV[6] then
    scope.counter = math.max(scope.counter, tonumber(sub(counter, 1, -#ARGV[6] - 1)))
  end
end

local jobs, lease_names, runs, noted, seen, at = {}, {}, {}, {}, {}, 8
for _ = 1, tonumber(ARGV[7]) do
  local name, service = ARGV[at], by_name[ARGV[at + 4]]
  if not seen[name] and call('HEXISTS', service.keys.leases, name) == 0 then
    seen[name] = true
    local job, step, run = ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
    local user, worker, granted = user_of(service, ARGV[at + 5]), ARGV[at + 6], tonumber(ARGV[at + 7])
    local region, weight, band = ARGV[at + 8] ~= '' and ARGV[at + 8], tonumber(ARGV[at + 9]), tonumber(ARGV[at + 10])
    granted = granted > 0 and granted <= now and granted or now
    user[WEIGHT], user[RUNNING] = weight, user[RUNNING] + 1
    park_or_unpark(service, user)
    -- Its user is charged for all of it at its end, as nothing is known any more of what it was charged.
    local charged, estimate, expires = 0, 0, now + service.ttl
    expires_by(service, expires)
    touch(service)
    keep_lease(service, name, region,
      pack(job, step, run, user[ID], worker, granted, region, charged, weight, band, estimate, expires))
    count_on(name)
    if noted[job] then
      note_granted({ job }, { name }, { run })
    else
      noted[job] = true
      jobs[#jobs + 1], lease_names[#lease_names + 1], runs[#runs + 1] = job, name, run
    end
  end
  at = at + 11
end
note_granted(jobs, lease_names, runs)
for i = at, #ARGV, 6 do
  keep_hold(i)
end
return { 1, wake(save()) }
