-- The state of each task: `queue:Q:pending:tasks` and `queue:Q:running:tasks` are sorted sets of tickets, with the time
-- of the last change in microseconds. `queue:Q:pending` and `queue:Q:running` are their sizes, plus the counts by hand
-- (`increment_pending` and similar calls), which are stored in the hash of credits. The sorted set of loads has the sum
-- of both sizes for every queue. Its members are the indices of the queues in three digits, so the first member is the
-- least loaded queue or, if several have the same load, the one with the lowest index.
-- ARGV[1]: the prefix of the queues' names; ARGV[2]: a key expires this many seconds after its last change.
local prefix, ttl = ARGV[1], ARGV[2]
local credits = 'fairlead:celery:' .. prefix .. ':credits'
local loads = 'fairlead:celery:' .. prefix .. ':loads'

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local function counter(queue, state)
  return 'queue:' .. queue .. ':' .. state
end

local function tickets(queue, state)
  return 'queue:' .. queue .. ':' .. state .. ':tasks'
end

local function count_of(queue, state)
  return tonumber(redis.call('GET', counter(queue, state)) or 0) or 0
end

local function member(index)
  return string.format('%03d', index)
end

-- Set the counter of a state and return it. It is computed, not incremented, so that a value which other code wrote is
-- replaced by the next change.
local function recount(queue, state)
  local members = redis.call('ZCARD', tickets(queue, state))
  local field = queue .. ':' .. state
  local credit = tonumber(redis.call('HGET', credits, field) or 0)
  if members + credit < 0 then
    credit = -members
    redis.call('HSET', credits, field, credit)
  end
  redis.call('SET', counter(queue, state), members + credit, 'EX', ttl)
  local rest = count_of(queue, state == 'pending' and 'running' or 'pending')
  -- XX: apps with different numbers of queues share the set, so a queue is added only when all loads are recomputed.
  redis.call('ZADD', loads, 'XX', members + credit + rest, member(string.sub(queue, #prefix + 1)))
  return members + credit
end

-- Put the ticket into this state ('' for none), whatever its state was.
local function place(queue, ticket, state, at)
  for _, other in ipairs({'pending', 'running'}) do
    if other ~= state and redis.call('ZREM', tickets(queue, other), ticket) == 1 then
      recount(queue, other)
    end
  end
  if state ~= '' then
    redis.call('ZADD', tickets(queue, state), at, ticket)
    redis.call('EXPIRE', tickets(queue, state), ttl)
    recount(queue, state)
  end
end
