-- withdraw: remove jobs from the queue. A job stays in the queue if it is queued with a newer run.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5..]          per withdrawal: job, run
--
-- Returns {number of jobs removed, services for which to wake this process, joined by NUL, rates_due()}.
--- @include scope
if scope.lost then
  return { 0, '' } -- the rebuild loads the state from the database
end
--- @include costs
--- @include queues
--- @include rates
--- @include moves
--- @include pick
--- @include save

local gone = 0
for i = 5, #ARGV, 2 do
  local job = ARGV[i]
  local stored = call('HGET', ENTRIES, job)
  local entry = stored and read_entry(job, stored)
  if entry and entry.run <= tonumber(ARGV[i + 1]) then
    local service = by_name[entry.service]
    call('HDEL', ENTRIES, job)
    leave(service, entry)
    forget_if_idle(service, read_user(service, entry.user))
    touch(service)
    gone = gone + 1
  end
end
return { gone, wake(save()), rates_due() }
