-- Where each task is: `queue:Q:pending:tasks` and `queue:Q:running:tasks` are sorted sets of tickets, with the moment of
-- the last move in microseconds. `queue:Q:pending` and `queue:Q:running` say how many those are, plus what was counted
-- by hand (`increment_pending` and its siblings, in the hash of credits). The sorted set of loads has the sum of both for
-- every queue, by its index in three digits: its first is the least loaded, the lowest index of several.
-- ARGV[1]: the prefix of the queues' names; ARGV[2]: how many seconds anything outlives its last move.
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

-- Never from the counter's own value: what somebody else wrote there is gone with the next move.
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
  -- Only where all of them are known: apps with more queues than the next caller has share the set.
  redis.call('ZADD', loads, 'XX', members + credit + rest, member(string.sub(queue, #prefix + 1)))
  return members + credit
end

-- Makes it so that the ticket is in this state ('' for in none), whatever was before.
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
