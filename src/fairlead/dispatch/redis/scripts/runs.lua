-- runs: look up which runs of these jobs are queued or leased in this scope.
--
--   KEYS   entries, onlease
--   ARGV   jobs
--
-- Returns per job the queued run and the newest leased run, or -1 if there is none.
local reply = {}
for first = 1, #ARGV, 1000 do
  local last = math.min(first + 999, #ARGV)
  local entries = redis.call('HMGET', KEYS[1], unpack(ARGV, first, last))
  local leases = redis.call('HMGET', KEYS[2], unpack(ARGV, first, last))
  for i = 1, last - first + 1 do
    local waiting, leased = -1, -1
    if entries[i] then
      waiting = select(7, cmsgpack.unpack(entries[i]))
    end
    local recorded = { cmsgpack.unpack(leases[i] or '') } -- name and run of each lease
    for n = 2, #recorded, 2 do
      leased = math.max(leased, recorded[n])
    end
    reply[#reply + 1] = waiting
    reply[#reply + 1] = leased
  end
end
return reply
