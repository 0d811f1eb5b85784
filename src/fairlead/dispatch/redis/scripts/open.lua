-- open: the end of a rebuild. A scope that was never closed has no epoch yet, so it stays as it is.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5]            the rebuild's epoch
--
-- Returns {1 if the scope is open at this epoch else 0, services this process is to wake for, joined by NUL}.
--- @include scope
--- @include lines
--- @include regions
--- @include pick
--- @include save

if scope.epoch ~= tonumber(ARGV[5]) then
  return { 0, '' }
end
if not scope.closed then
  return { scope.open and 1 or 0, '' }
end
scope.open = true
call('HSET', META, 'open', '1')
for _, service in ipairs(services) do
  touch(service)
end
return { 1, wake(save()) }
