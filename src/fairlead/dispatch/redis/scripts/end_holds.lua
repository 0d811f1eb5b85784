-- end_holds: free the slots of holds whose time is over, and drop what rates no longer count.
--
--   KEYS, ARGV[1..4]   as include/scope.lua
--   ARGV[5], ARGV[6]   optional: end the holds that are over at this time; the database's clock; both in µs
--
-- Returns {number of holds ended, services for which to wake this process, joined by NUL, rates_due()}.
--- @include scope
if scope.lost then
  return { 0, '' } -- the rebuild loads the state from the database
end
--- @include costs
--- @include queues
--- @include rates
--- @include pick
--- @include grant
--- @include holds
--- @include save

local ended = end_holds(ARGV[5] and now + ARGV[5] - ARGV[6] or now)
if rates then
  rates.advance()
end
return { ended, wake(save()), rates_due() }
