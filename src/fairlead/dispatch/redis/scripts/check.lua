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

-- What the users' records count: steps in the queue, heads, and leases. HSCAN may return a user twice.
local function counted_by_users(service)
  local queued, heads, running, seen = 0, 0, 0, {}
  each_stored_user(service, function(user_id, stored)
    if not seen[user_id] then
      seen[user_id] = true
      local user = user_from(user_id, stored)
      running = running + user[RUNNING]
      for at = LANES, #user, 3 do
        queued = queued + user[at + 1]
        heads = heads + (user[at + 2] and 1 or 0)
      end
    end
  end)
  return queued, heads, running
end

local function users_are_consistent(service, waiting)
  if call('HLEN', service.keys.users) > MOST_USERS then
    return true
  end
  local queued, heads, running = counted_by_users(service)
  return queued == waiting and heads == call('ZCARD', service.keys.heads) and running == service.leased
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
