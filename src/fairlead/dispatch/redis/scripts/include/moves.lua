-- Removing steps from the queue without granting them, and moving them within it.

-- Visit all stored users.
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

local function member_of(service, entry)
  local _, lane = where(service, entry.band, entry.rank, entry.region)
  return lane, queue_member(lane, entry.user, order_key(service, entry.rank, entry.seq), entry.job)
end

-- Remove a step from its queue. The caller then calls forget_if_idle, once the move is complete.
local function leave(service, entry)
  flush_joins(service)
  local lane, member = member_of(service, entry)
  call('ZREM', service.keys.line, member)
  count_out(service, entry, user_of(service, entry.user), lane)
end

-- Replace a step by a newer one of the same job. The new one joins before the old one leaves, so that a user with only
-- this step waiting does not re-enter the band.
local function replace_queued(old_service, old, service, new, user)
  if old_service == service then
    local lane, member = member_of(service, old)
    local _, new_member = member_of(service, new)
    if member == new_member then
      service.waiting[old.band] = service.waiting[old.band] - 1
      service.waiting[new.band] = service.waiting[new.band] + 1
      user[CHANGED] = true
      if old.cost then
        of_costs().count(service, lane, old.user, -1, -old.cost)
      end
      if new.cost then
        of_costs().count(service, lane, new.user, 1, new.cost)
      end
      return
    end
  end
  join(service, user, new.job, new.seq, new.band, new.rank, new.region, new.cost)
  leave(old_service, old)
end
