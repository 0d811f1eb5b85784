-- Count a ticket as pending in a queue that the caller chose. If the caller has counted it by hand before, with
-- `increment_pending(queue)`, that count becomes the ticket's.
-- ARGV[3]: the queue; ARGV[4]: the ticket.
--- @include ledger
local queue, ticket = ARGV[3], ARGV[4]
local field = queue .. ':pending'
if tonumber(redis.call('HGET', credits, field) or 0) > 0 then
  redis.call('HINCRBY', credits, field, -1)
end
place(queue, ticket, 'pending', now())
