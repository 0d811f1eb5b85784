-- Choose a queue for a ticket, count the ticket as pending there, and push its message to the queue.
-- ARGV[3]: the number of queues; ARGV[4], ARGV[5]: the ticket and its candidates, as for `reserve`; ARGV[6], ARGV[7]:
-- the text before and after the queue's name in the broker's key; ARGV[8], ARGV[9]: the same for the message. ARGV[10]:
-- not '' if the message may have been sent before; if it was, nothing is done. Returns the chosen index.
--- @include ledger
--- @include choose
local count = tonumber(ARGV[3])
if ARGV[10] ~= '' then
  for index = 0, count - 1 do
    for _, state in ipairs({'pending', 'running'}) do
      if redis.call('ZSCORE', tickets(prefix .. index, state), ARGV[4]) then return index end
    end
  end
end
know_loads(count)
local best = least(ARGV[5])
local queue = prefix .. best
redis.call('ZADD', tickets(queue, 'pending'), now(), ARGV[4])
redis.call('EXPIRE', tickets(queue, 'pending'), ttl)
recount(queue, 'pending')
redis.call('LPUSH', ARGV[6] .. queue .. ARGV[7], ARGV[8] .. queue .. ARGV[9])
return best
