-- Set the state of tasks. Repeating it changes nothing.
-- ARGV[3]: 'pending', 'running', or '' for tasks that have ended; then pairs of a queue and a ticket.
--- @include ledger
local state, at = ARGV[3], now()
for i = 4, #ARGV, 2 do
  place(ARGV[i], ARGV[i + 1], state, at)
end
