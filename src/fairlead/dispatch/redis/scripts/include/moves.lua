-- What leaves the line without being granted, or moves within it.

-- All users there are, as they were stored.
local function each_stored_user(service, visit)
  local cursor = '0'
  repeat
    local page = call('HSCAN', service.keys.users, cursor, 'COUNT', 1000)
    cursor = page[1]
    for i = 1, #page[2], 2 do
      visit(page[2][i], page[2][i + 1])
    end
  until cursor == '0'
end

local function place_of(service, entry)
  local _, lane = where(service, entry.band, entry.rank, entry.region)
  return lane, line_member(lane, entry.user, order_key(service, entry.rank, entry.seq), entry.job)
end

-- Take out of line. The caller forgets the user, if it is idle, when the move is complete.
local function leave(service, entry)
  put_in_line(service)
  local lane, member = place_of(service, entry)
  call('ZREM', service.keys.line, member)
  count_out(service, entry, user_of(service, entry.user), lane)
end

-- A step takes the place of an older one of the same job. It joins before the other leaves: who has just this one
-- step waiting does not enter the band anew.
local function replace_in_line(old_service, old, service, new, user)
  if old_service == service then
    local _, member = place_of(service, old)
    local _, new_member = place_of(service, new)
    if member == new_member then
      service.waiting[old.band] = service.waiting[old.band] - 1
      service.waiting[new.band] = service.waiting[new.band] + 1
      user[CHANGED] = true
      return
    end
  end
  join(service, user, new.job, new.seq, new.band, new.rank, new.region)
  leave(old_service, old)
end
