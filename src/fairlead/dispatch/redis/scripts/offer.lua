-- offer: put steps into line, or move them; an offer that is not newer than what is there does nothing.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5..]          per offer: job, seq, service, user, band, rank, step, run, weight, cost in µs or empty, region
--
-- Returns {how many were newer, services this process is to wake for}.
--- @include scope
--- @include lines
--- @include grant
--- @include save

local jobs, entries, leased, newer = {}, {}, {}, 0
for i = 5, #ARGV, 11 do
  jobs[#jobs + 1] = ARGV[i]
end
for i, stored in ipairs(read_many(ENTRIES, jobs)) do
  entries[jobs[i]] = stored and read_entry(jobs[i], stored) or nil
end
for i, stored in ipairs(read_many(ONLEASE, jobs)) do
  leased[jobs[i]] = stored or nil
end

local function is_newer(job, run)
  if entries[job] and entries[job].run >= run then
    return false
  end
  for other in string.gmatch(leased[job] or '', '%S+ (%S+) ') do
    if tonumber(other) >= run then
      return false
    end
  end
  return true
end

local offered, users = {}, {}
for i = 5, #ARGV, 11 do
  local name = ARGV[i + 2]
  users[name] = users[name] or {}
  table.insert(users[name], ARGV[i + 3])
end
for name, ids in pairs(users) do
  read_users(by_name[name], ids)
end
for i = 5, #ARGV, 11 do
  local job, run = ARGV[i], tonumber(ARGV[i + 7])
  if is_newer(job, run) then
    local region = ARGV[i + 10]
    local entry = {
      job = job, seq = tonumber(ARGV[i + 1]), service = ARGV[i + 2], user = ARGV[i + 3], band = tonumber(ARGV[i + 4]),
      rank = tonumber(ARGV[i + 5]), step = tonumber(ARGV[i + 6]), run = run, cost = tonumber(ARGV[i + 9]) or false,
      region = region ~= '' and region or false,
    }
    local service, present = by_name[entry.service], entries[job]
    local user = user_of(service, entry.user)
    user.weight = tonumber(ARGV[i + 8])
    if present then
      local old = by_name[present.service]
      replace_in_line(old, present, service, entry, user)
      forget_if_idle(old, present.user)
      touch(old)
    else
      join(service, entry, user)
    end
    touch(service)
    entries[job], offered[job] = entry, true
    newer = newer + 1
  end
end

local written = {}
for job in pairs(offered) do
  written[#written + 1] = job
  written[#written + 1] = stored_entry(entries[job])
end
call_many('HSET', ENTRIES, written, 2)
return { newer, wake(save()) }
