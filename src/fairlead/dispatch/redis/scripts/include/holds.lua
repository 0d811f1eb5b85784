-- Holds: slots that stay taken until a time.

-- End the holds that are over at this time; returns their number.
local function end_holds(time)
  local count = 0
  for _, service in ipairs(services) do
    local over = service.held > 0 and call('ZRANGEBYSCORE', service.keys.ends, '-inf', format('%d', time)) or NONE
    for _, key in ipairs(over) do
      local hold = unpack_of(call('HGET', service.keys.holds, key))
      call('HDEL', service.keys.holds, key)
      call('ZREM', service.keys.ends, key)
      if hold[2] then
        vacate(service, key, hold[2])
      end
      service.held = service.held - 1
      touch(service)
      count = count + 1
    end
  end
  return count
end

-- Keep a slot taken, unless the hold is known or over. Its six arguments start at ARGV[at]: key, job, service, region
-- or empty, until in µs, band. `until` is by the database's clock; adding `ahead` converts it to ours.
local function keep_hold(at, ahead)
  local key, service, until_then = ARGV[at], by_name[ARGV[at + 2]], tonumber(ARGV[at + 4])
  local region, over = ARGV[at + 3] ~= '' and ARGV[at + 3] or false, until_then + ahead
  local hold = { ARGV[at + 1], region, until_then, tonumber(ARGV[at + 5]) }
  if over > now and call('HSETNX', service.keys.holds, key, pack(hold)) == 1 then
    call('ZADD', service.keys.ends, format('%d', over), key)
    service.held = service.held + 1
    if region then
      occupy(service, key, region)
    end
    touch(service)
  end
end
