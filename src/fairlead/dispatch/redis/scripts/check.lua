-- check: compare the parts of the scope's queues with each other. A contradiction means that a member of a key was lost
-- which no other script misses: the head of a user's queue, for example, without which its steps are never granted. The
-- scope is then marked as lost, and rebuilt.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--
-- Returns {1 if the scope has lost data else 0}.
--- @include scope
if scope.lost then
  return { 1 }
end
--- @include costs
--- @include queues
--- @include moves

-- Redis serves nothing else while this script runs, so the records of more users than this are not compared.
local MOST_USERS = 5000

-- What the users' records count: steps in the queue, heads, and leases. The heads of groups are counted too. HSCAN may
-- return a user twice.
local function counted_by_users(service)
  local queued, heads, running, users = 0, 0, 0, {}
  each_stored_user(service, function(user_id, stored)
    if not users[user_id] then
      local user = user_from(user_id, stored)
      local is_group, lanes = byte(user_id) == 1, LANES
      if user[LANES] == '@' then
        lanes = is_group and GROUP_LANES or MEMBER_LANES
      end
      users[user_id] = user
      running = running + (is_group and 0 or user[RUNNING])
      for at = lanes, #user, 3 do
        queued = queued + (is_group and 0 or user[at + 1])
        heads = heads + (user[at + 2] and 1 or 0)
      end
    end
  end)
  return queued, heads, running, users
end

-- Whether every group counts what its members have: their number, their leases, and their heads by lane.
local function groups_are_consistent(service, users)
  local expected = {}
  for id, user in pairs(users) do
    if byte(id) == 1 then
      expected[id] = expected[id] or { members = 0, running = 0, lanes = {} }
    end
    local group = not service.fifo and user[LANES] == '@' and user[GROUP]
    if group then
      local sums = expected[group] or { members = 0, running = 0, lanes = {} }
      expected[group] = sums
      sums.members, sums.running = sums.members + 1, sums.running + user[RUNNING]
      for at = byte(id) == 1 and GROUP_LANES or MEMBER_LANES, #user, 3 do
        sums.lanes[user[at]] = (sums.lanes[user[at]] or 0) + (user[at + 2] and 1 or 0)
      end
    end
  end
  for id, sums in pairs(expected) do
    local group = users[id]
    if not group or group[WAITING] ~= sums.members or group[RUNNING] ~= sums.running then
      return false
    end
    for at = GROUP_LANES, #group, 3 do
      if group[at + 1] ~= (sums.lanes[group[at]] or 0) then
        return false
      end
      sums.lanes[group[at]] = 0
    end
    for _, count in pairs(sums.lanes) do
      if count > 0 then
        return false
      end
    end
  end
  return true
end

local function users_are_consistent(service, waiting)
  if call('HLEN', service.keys.users) > MOST_USERS then
    return true
  end
  local queued, heads, running, users = counted_by_users(service)
  return queued == waiting and heads == call('ZCARD', service.keys.heads) and running == service.leased
    and groups_are_consistent(service, users)
end

local function is_consistent(service)
  local k, waiting = service.keys, service.waiting[1] + service.waiting[2] + service.waiting[3]
  return waiting == call('ZCARD', k.line)
    and (not service.fifo or waiting == call('ZCARD', k.seqs))
    and service.held == call('ZCARD', k.ends)
    and users_are_consistent(service, waiting)
end

local consistent, waiting = true, 0
for _, service in ipairs(services) do
  consistent = consistent and is_consistent(service)
  waiting = waiting + service.waiting[1] + service.waiting[2] + service.waiting[3]
end
if consistent and waiting == call('HLEN', ENTRIES) then
  return { 0 }
end
call('HSET', META, 'open', 'lost')
return { 1 }
