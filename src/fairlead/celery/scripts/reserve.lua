-- Chooses a queue for each ticket, the one with the least pending and running, the lowest index of several; and counts
-- the ticket as pending there.
-- ARGV[3]: how many queues there are; then pairs of a ticket and its candidates: indices with commas between, or '' for
-- all queues. Returns the index chosen for each.
--- @include ledger
local count, at = tonumber(ARGV[3]), now()
local keys = {}
for index = 0, count - 1 do
  keys[2 * index + 1] = counter(prefix .. index, 'pending')
  keys[2 * index + 2] = counter(prefix .. index, 'running')
end
local values, loads = redis.call('MGET', unpack(keys)), {}
for index = 0, count - 1 do
  loads[index] = (tonumber(values[2 * index + 1]) or 0) + (tonumber(values[2 * index + 2]) or 0)
end

local function least(candidates)
  local best
  if candidates == '' then
    best = 0
    for index = 1, count - 1 do
      if loads[index] < loads[best] then best = index end
    end
  else
    for text in string.gmatch(candidates, '%d+') do
      local index = tonumber(text)
      if best == nil or loads[index] < loads[best] or (loads[index] == loads[best] and index < best) then
        best = index
      end
    end
  end
  return best
end

local chosen, touched = {}, {}
for i = 4, #ARGV, 2 do
  local best = least(ARGV[i + 1])
  redis.call('ZADD', tickets(prefix .. best, 'pending'), at, ARGV[i])
  loads[best] = loads[best] + 1
  touched[best] = true
  chosen[#chosen + 1] = best
end
for index in pairs(touched) do
  redis.call('EXPIRE', tickets(prefix .. index, 'pending'), ttl)
  recount(prefix .. index, 'pending')
end
return chosen
