-- leader_renew: extend the lease if this holder has it.
--
--   KEYS[1]   the lease: `term holder`
--   ARGV      holder, ttl in ms
--
-- Returns 1 if this holder is the leader, else 0.
local leader = redis.call('GET', KEYS[1])
if not leader or string.match(leader, '^%d+ (.*)$') ~= ARGV[1] then
  return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
