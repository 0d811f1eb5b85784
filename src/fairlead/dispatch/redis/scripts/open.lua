-- open: the end of a rebuild. A scope that was never closed has no epoch yet, so it stays as it is.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--
-- Returns {0, services this process is to wake for}.
--- @include scope
--- @include lines
--- @include grant
--- @include save

if not scope.closed then
  return { 0, {} }
end
scope.open = true
call('HSET', META, 'open', '1')
for _, service in ipairs(services) do
  touch(service)
end
return { 0, wake(save()) }
