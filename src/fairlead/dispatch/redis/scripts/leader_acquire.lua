-- leader_acquire: take the lease if it is free, or renew it with a new term if this holder has it.
--
--   KEYS[1]   the lease: `term holder`
--   ARGV      holder, term, ttl in ms
--
-- Returns 1 if this holder is the leader now, else 0.
local leader = redis.call('GET', KEYS[1])
if leader and string.match(leader, '^%d+ (.*)$') ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2] .. ' ' .. ARGV[1], 'PX', ARGV[3])
return 1
