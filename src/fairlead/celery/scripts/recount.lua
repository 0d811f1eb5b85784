-- Recompute the counters of all queues, and renew the expiry of the sets they count.
-- ARGV[3]: the number of queues. Returns the queue, the state, the old and the right value of each wrong counter.
--- @include ledger
local wrong = {}
for index = 0, tonumber(ARGV[3]) - 1 do
  for _, state in ipairs({'pending', 'running'}) do
    local queue = prefix .. index
    local was = tonumber(redis.call('GET', counter(queue, state)) or 0) or -1
    local is = recount(queue, state)
    redis.call('EXPIRE', tickets(queue, state), ttl)
    if was ~= is then
      for _, value in ipairs({queue, state, was, is}) do wrong[#wrong + 1] = value end
    end
  end
end
return wrong
