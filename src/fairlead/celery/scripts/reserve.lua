-- Choose a queue for each ticket and count the ticket as pending there.
-- ARGV[3]: the number of queues; then pairs of a ticket and its candidates: indices separated by commas, or '' for
-- all queues. Returns the chosen index for each ticket.
--- @include ledger
--- @include choose
know_loads(tonumber(ARGV[3]))
local chosen, touched, at = {}, {}, now()
for i = 4, #ARGV, 2 do
  local best = least(ARGV[i + 1])
  redis.call('ZADD', tickets(prefix .. best, 'pending'), at, ARGV[i])
  redis.call('ZINCRBY', loads, 1, member(best))
  touched[best] = true
  chosen[#chosen + 1] = best
end
for index in pairs(touched) do
  redis.call('EXPIRE', tickets(prefix .. index, 'pending'), ttl)
  recount(prefix .. index, 'pending')
end
return chosen
