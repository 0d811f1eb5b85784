-- Delete the state of some queues. The loads of all queues are recomputed when they are needed.
-- ARGV[3...]: the queues.
--- @include ledger
redis.call('DEL', loads)
for i = 3, #ARGV do
  for _, state in ipairs({'pending', 'running'}) do
    redis.call('DEL', counter(ARGV[i], state), tickets(ARGV[i], state))
    redis.call('HDEL', credits, ARGV[i] .. ':' .. state)
  end
end
