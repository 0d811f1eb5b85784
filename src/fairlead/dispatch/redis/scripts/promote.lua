-- promote: move waiting steps to another band and set their run. A step is left unchanged if it is queued with a newer
-- run; a job that is not queued is ignored.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5..]          per promotion: job, run, band
--
-- Returns {number of steps moved, services for which to wake this process, joined by NUL, rates_due()}.
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

local moved = 0
for i = 5, #ARGV, 3 do
  local job, run, band = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  local stored = call('HGET', ENTRIES, job)
  local entry = stored and read_entry(job, stored)
  if entry and entry.run <= run and not (entry.run == run and entry.band == band) then
    local service = by_name[entry.service]
    local raised = read_entry(job, stored)
    raised.band, raised.run = band, run
    replace_queued(service, entry, service, raised, user_of(service, entry.user))
    forget_if_idle(service, read_user(service, entry.user))
    call('HSET', ENTRIES, job, stored_entry(raised))
    touch(service)
    moved = moved + 1
  end
end
return { moved, wake(save()), rates_due() }
