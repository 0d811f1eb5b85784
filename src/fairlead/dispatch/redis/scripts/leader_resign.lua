-- leader_resign: delete the lease if this holder has it.
--
--   KEYS[1]   the lease: `term holder`
--   ARGV      holder
--
-- Returns 1 if it was deleted, else 0.
local leader = redis.call('GET', KEYS[1])
if not leader or string.match(leader, '^%d+ (.*)$') ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])
