-- restore: while closed, put back leases under their names, with a full TTL from now, and holds.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]            the name's last digits: which scope a lease is of
--   ARGV[6]            how many leases; then per lease: name, job, step, run, service, user, worker, granted in µs,
--                      region or empty, weight, band
--   then per hold:     key, job, service, region or empty, until in µs
--
-- Returns {0, {}}: nothing is runnable in a closed scope.
--- @include scope
--- @include lines
--- @include grant
--- @include save

if not scope.closed then
  return { 0, {} }
end

-- New names go on behind a restored one of this scope.
local function count_on(name)
  local counter = string.match(name, ':(%d+)$')
  if counter and #counter > #ARGV[5] and sub(counter, -#ARGV[5]) == ARGV[5] then
    scope.counter = math.max(scope.counter, tonumber(sub(counter, 1, -#ARGV[5] - 1)))
  end
end

local changes, seen, at = {}, {}, 7
for _ = 1, tonumber(ARGV[6]) do
  local name, service = ARGV[at], by_name[ARGV[at + 4]]
  if not seen[name] and call('HEXISTS', service.keys.leases, name) == 0 then
    seen[name] = true
    local granted = tonumber(ARGV[at + 7])
    local lease = {
      name = name, job = ARGV[at + 1], step = tonumber(ARGV[at + 2]), run = tonumber(ARGV[at + 3]),
      user = ARGV[at + 5], worker = ARGV[at + 6], granted = granted > 0 and granted <= now and granted or now,
      region = ARGV[at + 8] ~= '' and ARGV[at + 8] or false, weight = tonumber(ARGV[at + 9]),
      band = tonumber(ARGV[at + 10]), expires = now + service.rules.ttl,
      -- Its user is charged for all of it at its end, as nothing is known any more of what it was charged.
      charged = 0, estimate = 0,
    }
    local user = user_of(service, lease.user)
    user.weight, user.running = lease.weight, user.running + 1
    park_or_unpark(service, user)
    keep_lease(service, lease)
    count_on(name)
    changes[#changes + 1] = { lease.job, name, lease.run }
  end
  at = at + 11
end
note_leases(changes)
for i = at, #ARGV, 5 do
  local region = ARGV[i + 3] ~= '' and ARGV[i + 3] or false
  keep_hold(by_name[ARGV[i + 2]], ARGV[i], ARGV[i + 1], region, tonumber(ARGV[i + 4]))
end
return { 0, wake(save()) }
