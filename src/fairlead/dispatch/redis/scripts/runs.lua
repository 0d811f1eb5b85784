-- runs: what a scope knows of jobs that are offered to another one.
--
--   KEYS   entries, onlease
--   ARGV   jobs
--
-- Returns, per job, the run that waits here and the newest on lease here; -1 for none.
local answer = {}
for first = 1, #ARGV, 1000 do
  local last = math.min(first + 999, #ARGV)
  local entries = redis.call('HMGET', KEYS[1], unpack(ARGV, first, last))
  local leases = redis.call('HMGET', KEYS[2], unpack(ARGV, first, last))
  for i = 1, last - first + 1 do
    local waiting, leased = -1, -1
    if entries[i] then
      waiting = select(7, cmsgpack.unpack(entries[i]))
    end
    local noted = { cmsgpack.unpack(leases[i] or '') } -- name and run of each lease
    for n = 2, #noted, 2 do
      leased = math.max(leased, noted[n])
    end
    answer[#answer + 1] = waiting
    answer[#answer + 1] = leased
  end
end
return answer
