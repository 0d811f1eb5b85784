-- withdraw: take jobs out of line, unless what is there is newer.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5..]          per withdrawal: job, run
--
-- Returns {how many left, services this process is to wake for, joined by NUL}.
--- @include scope
--- @include lines
--- @include regions
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
return { gone, wake(save()) }
