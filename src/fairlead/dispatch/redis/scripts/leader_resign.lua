-- leader_resign: end the lease, if it is this holder's.
--
--   KEYS[1]   the lease: `term holder`
--   ARGV      holder
--
-- Returns 1 if it was, else 0.
local leader = redis.call('GET', KEYS[1])
if not leader or string.match(leader, '^%d+ (.*)$') ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])
