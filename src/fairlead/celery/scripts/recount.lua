-- Writes the counters of all queues anew, and keeps what they count from expiring.
-- ARGV[3]: how many queues there are. Returns queue, state, what was there, what is right: of those that were wrong.
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
