-- Change a counter by hand: one more or one less, never below zero. Returns the new count.
-- ARGV[3]: the queue; ARGV[4]: 'pending' or 'running'; ARGV[5]: 1 or -1; ARGV[6]: the seconds until this change expires.
--- @include ledger
local queue, state, by = ARGV[3], ARGV[4], tonumber(ARGV[5])
if recount(queue, state) + by >= 0 then
  redis.call('HINCRBY', credits, queue .. ':' .. state, by)
  redis.call('EXPIRE', credits, ARGV[6])
end
return recount(queue, state)
