-- Choose the queue for the next ticket: the one with the fewest pending and running tasks or, if several have the same
-- load, the one with the lowest index. `know_loads` computes the loads of all queues if they are not stored.
local function know_loads(count)
  if redis.call('ZCARD', loads) ~= count then
    redis.call('DEL', loads)
    for index = 0, count - 1 do
      local queue = prefix .. index
      redis.call('ZADD', loads, count_of(queue, 'pending') + count_of(queue, 'running'), member(index))
    end
  end
  redis.call('EXPIRE', loads, ttl)
end

-- Return the index of the least loaded candidate. `candidates`: indices separated by commas, or '' for all queues.
local function least(candidates)
  if candidates == '' then return tonumber(redis.call('ZRANGE', loads, 0, 0)[1]) end
  local best, lowest
  for text in string.gmatch(candidates, '%d+') do
    local index = tonumber(text)
    local load = tonumber(redis.call('ZSCORE', loads, member(index)))
    if best == nil or load < lowest or (load == lowest and index < best) then
      best, lowest = index, load
    end
  end
  return best
end
