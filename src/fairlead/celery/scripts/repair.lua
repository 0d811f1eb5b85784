-- Correct the state of tickets, each only if it has not changed since it was read.
-- ARGV[3...]: queue, ticket, the state it was seen in ('' for none), the time of that change, the state it should be in.
-- Returns 1 for each ticket that was repaired, 0 for each ticket that has changed.
--- @include ledger
local at, repaired = now(), {}

local function unmoved(queue, ticket, state, moved)
  if state ~= '' then
    return tonumber(redis.call('ZSCORE', tickets(queue, state), ticket) or -1) == tonumber(moved)
  end
  return not redis.call('ZSCORE', tickets(queue, 'pending'), ticket)
    and not redis.call('ZSCORE', tickets(queue, 'running'), ticket)
end

for i = 3, #ARGV, 5 do
  local queue, ticket = ARGV[i], ARGV[i + 1]
  local does = unmoved(queue, ticket, ARGV[i + 2], ARGV[i + 3])
  if does then place(queue, ticket, ARGV[i + 4], at) end
  repaired[#repaired + 1] = does and 1 or 0
end
return repaired
