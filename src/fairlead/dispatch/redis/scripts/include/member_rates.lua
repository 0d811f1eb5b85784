-- Rates of users and groups, the members of a service: what their windows count, and who is parked because of them.
-- Included in include/rates.lua, so that this is created only if members have rates, or windows. A window is a text in the
-- hash RATES, and the time at which it has to be looked at is in RATED, both by service NUL id. The rate of a group is the
-- field `rate:` and its path of META: requests, units, per.
local RATES, RATED = KEYS[#KEYS - 1], KEYS[#KEYS]
local was_empty, late = state.n == 0, {}
local pack_struct, unpack_struct = struct.pack, struct.unpack

local function has_rate(window, rate)
  return window[W_REQUESTS] == rate[1] and window[W_UNITS] == rate[2] and window[W_PER] == rate[3]
end

-- The rate of the group of this path, or false.
local group_rates = {}
local function group_rate(path)
  local rate = group_rates[path]
  if rate == nil then
    local stored = state.g and call('HGET', META, 'rate:' .. path)
    rate = stored and { unpack_of(stored) }
    group_rates[path] = rate
  end
  return rate
end

-- The windows of members that were read, by id; false: there is none. `texts` of a service has the index of the text of a
-- window that has not been decoded, in the lists below: its field, the text, and whether it has to be written.
for i = 1, #services do
  services[i].windows, services[i].texts = {}, {}
end
local text_keys, texts, texts_changed, text_count = {}, {}, {}, 0

-- Decode a member's window, and count the events behind it.
local function window_from(key, text)
  local requests, units, per, _, high, low = unpack_struct('<dddBBB', text)
  local last = 256 * high + low - W_EVENTS
  local window = { key, false, per, requests, units, unpack_of(sub(text, W_HEAD, last)) }
  for at = last + 1, #text, W_EVENT do
    local count, reserved, left, ends, time = unpack_struct(W_EVENT_FORMAT, text, at)
    if ends > 0 then
      count_ends(window, count, reserved, left, ends, time)
    else
      window[W_OPEN], window[W_USED] = window[W_OPEN] + count, window[W_USED] + count
      window[W_OPEN_UNITS], window[W_USED_UNITS] = window[W_OPEN_UNITS] + reserved, window[W_USED_UNITS] + reserved
    end
  end
  return window
end

local function text_of(window)
  local head, most, used = pack(unpack(window, W_REST)), window[W_UNITS], window[W_USED]
  local grants, bits, size = math.min(255, window[W_REQUESTS] - used), 127, W_HEAD - 1 + W_EVENTS + #head
  if most < MIDDLE then
    bits = math.max(0, select(2, math.frexp(2 * window[W_USED_UNITS] / math.max(1, used))))
    grants = math.min(grants, floor((most - window[W_USED_UNITS]) / 2 ^ bits))
  end
  grants = math.max(0, grants)
  return pack_struct('<dddBBBBBB', window[W_REQUESTS], most, window[W_PER],
    window[W_LOOK] > 0 and window[W_LOOK] < MIDDLE and 1 or 0, floor(size / 256), size % 256,
    math.max(0, W_MOST_EVENTS - grants), bits, grants) .. head
end

-- The tag of a text that may get events, by rate, and the seconds of the rate by tag; false if it may not.
local tags, per_by_tag = {}, {}

local function tag_of(rate)
  tags[rate] = pack_struct(W_TAG_FORMAT, rate[1], rate[2], rate[3], 1)
  return tags[rate]
end

local function per_of(tag)
  local _, _, per, may_grow = unpack_struct(W_TAG_FORMAT, tag)
  per_by_tag[tag] = may_grow == 1 and per
  return per_by_tag[tag]
end

local grant_units, grant_event
local function event_of_grant(units)
  if units ~= grant_units then
    grant_units, grant_event = units, pack_struct(W_EVENT_FORMAT, 1, units, 0, 0, 0)
  end
  return grant_event
end

-- The seconds of the rate of a window, if it has a text to which another event may be appended.
local function may_grow(text)
  if not text then
    return false
  end
  local tag, high, low = sub(text, 1, W_TAG), byte(text, W_TAG + 1, W_TAG + 2)
  local per = per_by_tag[tag]
  if per == nil then
    per = per_of(tag)
  end
  return #text < 256 * high + low and per
end

-- Append the end of a call to the text of a member's window, if that may grow. Returns whether this was done.
local end_units, end_left, end_ends, end_event
local function append_end(index, units, used, sent_at)
  local text = texts[index]
  local per = text and per_by_tag[sub(text, 1, W_TAG)]
  if per == nil then
    per = may_grow(text)
  end
  local high, low = byte(text or '', W_TAG + 1, W_TAG + 2)
  if not per or #text >= 256 * high + low or used and used > units then
    return false
  end
  local left, ends = used or units, not sent_at and ends_by_per[per] or end_of(per, sent_at)
  if units ~= end_units or left ~= end_left or ends ~= end_ends then
    end_units, end_left, end_ends = units, left, ends
    end_event = pack_struct(W_EVENT_FORMAT, 1, units, left, ends, now)
  end
  texts[index] = text .. end_event
  texts_changed[index] = true
  return true
end

-- Groups that are far from their rates, by the index of their text: the index (false: the text was decoded), per, how
-- many grants fit surely, the most units of each; then what is to be appended: the number and units of grants, and of
-- calls that ended, the units that these count with, and the end of their entry.
local far = {}

-- The i-th of these groups, false if its window has to be decoded. It is kept in the list.
local function find_far(service, groups, i)
  local index, found = service.texts[groups[i]], false
  local text = index and texts[index]
  if text then
    found = far[index]
    local per = not found and may_grow(text)
    if per then
      local rate, high, low, _, bits, grants = group_rate(sub(groups[i], 2)), byte(text, W_TAG + 1, W_TAG + 5)
      local used = W_MOST_EVENTS - (256 * high + low - #text) / W_EVENT
      grants = sub(text, 1, W_TAG) == (tags[rate] or tag_of(rate)) and grants - used or 0
      found = { index, per, grants, 2 ^ bits, 0, 0, 0, 0, 0, 0 }
      far[index] = found
    end
  end
  groups[-i] = found or false
  return groups[-i]
end

local function append_of_group(group)
  local index = group[1]
  local text, count, ended = texts[index], group[5], group[7]
  if ended > 0 then
    text = text .. pack_struct(W_EVENT_FORMAT, ended, group[8], group[9], group[10], now)
  end
  if count > 0 then
    local full, bits, grants = byte(text, W_TAG + 3, W_TAG + 5)
    text = sub(text, 1, W_TAG + 2) .. string.char(math.min(W_MOST_EVENTS, full + count), bits, grants - count)
      .. sub(text, W_HEAD) .. pack_struct(W_EVENT_FORMAT, count, group[6], 0, 0, 0)
  end
  texts[index], texts_changed[index] = text, texts_changed[index] or ended + count > 0
  group[1] = false
end

-- A member's window; nil if the member has none. With `rate`, it is created if needed.
local function member_window(service, user_id, rate)
  local known = service.windows
  local found = known[user_id]
  if found == nil then
    local index = service.texts[user_id]
    if index then
      if far[index] and far[index][1] then
        append_of_group(far[index])
      end
      found = texts[index] and window_from(text_keys[index], texts[index])
      if found then
        found[W_CHANGED] = texts_changed[index] and 1
        texts[index], texts_changed[index] = false, false
      end
    else
      local key = state.n > 0 and service.name .. '\0' .. user_id
      local stored = key and call('HGET', RATES, key)
      found = stored and window_from(key, stored)
    end
    known[user_id] = found
  end
  if not found and rate then
    found = new_window(rate)
    found[W_KEY] = service.name .. '\0' .. user_id
    known[user_id], state.n, pack_now = found, state.n + 1, true
  end
  return found or nil
end

-- Read the windows of many users, if they have rates (`by_user`), or groups, with one command.
local function read_windows(service, ids)
  if state.n == 0 then
    return
  end
  local known, of_service, prefix, last, count = service.windows, service.texts, service.name .. '\0', text_count, 0
  local keys = last == 0 and text_keys or {}
  for i = 1, #ids do
    local id = ids[i]
    if not of_service[id] and known[id] == nil then
      count = count + 1
      of_service[id] = last + count
      keys[count] = prefix .. id
    end
  end
  local read = read_many(RATES, keys)
  if last == 0 and count > 0 then
    texts = read
  else
    for i = 1, count do
      text_keys[last + i] = keys[i]
      texts[last + i] = read[i]
    end
  end
  text_count = last + count
end

-- When the window of a member has to be looked at: when the member gets another chance, or at the end of its last entry.
local function look_of(window, user)
  local parked = user and user[PARKED]
  if parked and type(parked) == 'number' and parked > 0 then
    return parked
  end
  return window[W_OPEN] == 0 and window[W_FIRST] and window[#window - 2] or MIDDLE
end

local function score(service, window, user_id, user)
  local look = look_of(window, user or read_user(service, user_id))
  if look == MIDDLE and window[W_FIRST] and window[#window - 2] > now then
    look = window[#window - 2] -- earlier than necessary, so that the text of the window may get events
  end
  if window[W_LOOK] == 0 or look < window[W_LOOK] then
    window[W_LOOK], window[W_CHANGED] = look, 2
  else
    window[W_CHANGED] = window[W_CHANGED] or 1
  end
end

-- The ids of the groups with a rate: the group of this id, and those that it is in. `path` is that of the innermost.
local ids_by_group, ids_by_path, ids_of_service = {}, {}, nil
local function rated_ids(service, id)
  if not state.g or service.fifo or not id then
    return NONE
  elseif service ~= ids_of_service then
    ids_by_group, ids_by_path, ids_of_service = {}, {}, service
  end
  local found = ids_by_group[id]
  if not found then
    local path = sub(id, 2)
    found = {}
    while path do
      if group_rate(path) then
        found[#found + 1], found.path = '\1' .. path, found.path or path
      end
      path = string.find(path, '/', 1, true) and string.match(path, '^(.*)/[^/]*$')
    end
    ids_by_group[id] = found
  end
  return found
end

-- The same for a path that a lease names. Paths have a table of their own: `rates.take` looks up GROUP of users without a
-- group too, which is a sort key.
local function rated_on_path(service, path)
  local found = rated_ids(service, '\1' .. path)
  if service == ids_of_service then -- not if the service is FIFO by now
    ids_by_path[path] = found
  end
  return found
end

local function rated_groups(service, user_id)
  local user = state.g and (service.users[user_id] or read_user(service, user_id))
  return user and user[LANES] == '@' and rated_ids(service, user[GROUP]) or NONE
end

-- Give the window of a user, created if needed, the rate of its plan. Returns it if the user has a rate.
local function take_plan(service, user_id, plan, found)
  local rate = plan and state.q and state.q[plan] or service.rates.u
  if not found then
    found = rate and member_window(service, user_id, rate)
  end
  if found and not (rate and has_rate(found, rate)) then
    take_rate(found, rate or nil) -- the user has another plan now
    score(service, found, user_id)
  end
  return rate and found
end

-- The window of a group, created if needed, with the rate that the group has now.
local function window_of_group(service, id)
  local rate = group_rate(sub(id, 2))
  local found = member_window(service, id, rate)
  if not has_rate(found, rate) then
    take_rate(found, rate)
  end
  return found
end

-- A group or user was given another chance.
local function reconsider(service, node)
  if byte(node[ID]) == 1 then
    of_groups().park_or_unpark(service, node)
  else
    park_or_unpark(service, node)
  end
end

-- Give a member another chance that is parked because of its rate, from the next park_or_unpark on.
local function give_chance(node)
  if node and node[PARKED] and type(node[PARKED]) == 'number' then
    node[PARKED] = 0
    node[CHANGED] = true
  end
end

-- A call of a member has ended, or was sent. `node` is the member's record, or false.
local function changed(found, node)
  give_chance(node)
  local look = found[W_FIRST] and found[#found - 2] or MIDDLE -- as in `score`
  if look < found[W_LOOK] or found[W_LOOK] == 0 then
    found[W_LOOK], found[W_CHANGED] = look, 2
  else
    found[W_CHANGED] = found[W_CHANGED] or 1
  end
end

local function advance_members()
  local looks = {}
  for _, key in ipairs(state.n > 0 and call('ZRANGEBYSCORE', RATED, '-inf', format('%d', now)) or NONE) do
    local name, user_id = string.match(key, '^(%Z*)%z(.*)$')
    local service = by_name[name]
    local window = service and member_window(service, user_id)
    if window then
      looks[#looks + 1] = { look_of(window, read_user(service, user_id)), key, service, user_id, window }
    end
  end
  -- In the order of the times that matter: those in RATED may be earlier.
  if #looks > 1 then
    table.sort(looks, function(a, b) return a[1] < b[1] or (a[1] == b[1] and before(a[2], b[2])) end)
  end
  for _, look in ipairs(looks) do
    local time, _, service, user_id, window = unpack(look)
    local user = read_user(service, user_id)
    if time <= now then
      window_advance(window)
    end
    if user and type(user[PARKED]) == 'number' and user[PARKED] <= now then
      user[CHANGED] = true
      reconsider(service, user)
      touch(service)
    end
    window[W_LOOK] = 0
    score(service, window, user_id)
  end
end

-- Park a member whose window keeps a step of these units from being granted, and return it. Its heads are stale then.
local function hold(service, id, found, units)
  local node, due = user_of(service, id), window_due(found, units)
  node[PARKED] = due and due > 0 and due or MIDDLE
  score(service, found, id)
  mark_stale(service, node)
  if node[LANES] == '@' then
    of_groups().park_changed(service, node)
  end
  return node
end

-- Park the user, or the first of its groups, whose rate keeps a step of these units from being granted, and return it.
local function hold_member(service, user_id, units, groups)
  local read = service.windows
  for i = by_user and 0 or 1, #groups do
    local id = groups[i] or user_id
    local found = read[id]
    if found == nil then
      found = member_window(service, id)
    end
    if found and not window_fits(found, units) then
      return hold(service, id, found, units)
    end
  end
end

rates.read_members = read_windows

rates.take = function(service, user, cost, plan)
  local units, mask, groups, found = cost or mean_units, own_mask, NONE, nil
  if own_used >= own_most then
    return nil
  end
  local only = not by_user and service == ids_of_service and ids_by_group[user[GROUP]]
  local far_group = only and not only[2] and only[-1]
  if far_group and far_group[1] and far_group[3] > 0 and units <= far_group[4] then
    -- The only rate of a member is far from full.
    if own_most < MIDDLE and own_used > 0 and own_used + units > own_most then
      return nil
    elseif mask == 1 then
      opened, opened_units, own_used = opened + 1, opened_units + units, own_used + units
    end
    far_group[3], far_group[5], far_group[6] = far_group[3] - 1, far_group[5] + 1, far_group[6] + units
    return mask + 16, units, only.path
  end
  local limited, index, text, rate = with_units and units or 0, nil, nil, nil
  if by_user then
    local id = user[ID]
    rate, index = plan and state.q and state.q[plan] or rate_of_users, service.texts[id]
    text = index and rate and texts[index]
    if text then
      -- Most windows are far from full, which shows without decoding them.
      local high, low, full, bits = byte(text, W_TAG + 1, W_TAG + 4)
      if #text >= 256 * high + low - W_EVENT * full or units > 2 ^ bits
        or sub(text, 1, W_TAG) ~= (tags[rate] or tag_of(rate)) then
        text = nil
      end
    end
    if not text then
      found = service.windows[id]
      if found == nil then
        found = member_window(service, id)
      end
      if found and (found[W_USED] >= found[W_REQUESTS]
        or found[W_UNITS] < MIDDLE and not units_fit(found, limited)) then
        hold(service, id, found, limited)
        return false
      end
    end
  end
  if state.g and user[LANES] == '@' then
    groups = service == ids_of_service and ids_by_group[user[GROUP]] or rated_ids(service, user[GROUP])
    for i = 1, #groups do
      local group = groups[-i]
      if group == nil then
        group = find_far(service, groups, i)
      end
      if not (group and group[1] and group[3] > 0 and units <= group[4]) then
        local id = groups[i]
        local of_group = service.windows[id] or member_window(service, id)
        if of_group and (of_group[W_USED] >= of_group[W_REQUESTS]
          or of_group[W_UNITS] < MIDDLE and not units_fit(of_group, limited)) then
          hold(service, id, of_group, limited)
          return false
        end
      end
    end
  end
  if own_most < MIDDLE and own_used > 0 and own_used + units > own_most then
    return nil
  end
  if mask == 1 then
    opened, opened_units, own_used = opened + 1, opened_units + units, own_used + units
  end
  if text then
    mask = mask + 8
    texts[index] = text .. (units == grant_units and grant_event or event_of_grant(units))
    texts_changed[index] = true
  elseif by_user then
    if not (found and rate and found[W_REQUESTS] == rate[1] and found[W_UNITS] == rate[2]
      and found[W_PER] == rate[3]) then
      found = take_plan(service, user[ID], plan, found)
    end
    if found then
      mask = mask + 8
      open(found, units)
    end
  end
  if groups[1] then
    mask = mask + 16
    for i = 1, #groups do
      local group = groups[-i]
      if group and group[1] then
        group[3], group[5], group[6] = group[3] - 1, group[5] + 1, group[6] + units
      else
        open(window_of_group(service, groups[i]), units)
      end
    end
  end
  return mask, units, groups.path
end

-- Whether the rate of the user, or of one of its groups, keeps the user's first step from being granted. If so, the
-- user or the group is parked.
rates.parks = function(service, lane, user_id)
  local of = service.rates
  if not may_park or not of or not (of.u or state.q or state.g) then
    return false
  end
  local node = hold_member(service, user_id, units_at(service, lane, user_id), rated_groups(service, user_id))
  if node then
    late[#late + 1] = { service, node }
    if node[LANES] == '@' then
      of_groups().each(service, node, function(group) late[#late + 1] = { service, group } end)
    end
    refresh(service)
  end
  return node ~= nil
end

-- After `ended`: look again at the groups of this path. The user may be in another group now.
rates.groups_ended = function(service, path)
  local groups = rated_on_path(service, path)
  for i = 1, #groups do
    local group = read_user(service, groups[i])
    if group and group[PARKED] == 0 then
      reconsider(service, group)
    end
  end
end

-- A call of a user has ended, or was never made.
local function ended_of_user(service, user, refund, used, mask, units, sent_at, reported)
  local id = user[ID]
  local index = service.texts[id]
  if not index and service.windows[id] == nil then
    read_windows(service, { id })
    index = service.texts[id]
  end
  index = mask % 16 >= 8 and not refund and not reported and index
  if index and append_end(index, units, used, sent_at) then
    if user[PARKED] then
      give_chance(user)
    end
    return
  end
  local found = service.windows[id]
  if found == nil then
    found = member_window(service, id)
  end
  if found then
    if mask % 16 >= 8 then
      local end_in = refund and not reported and close or window_ended
      end_in(found, units, used, sent_at, reported)
    end
    changed(found, user)
  end
end

-- The same for the groups with rates, of which the innermost has this path. Returns whether one is to be unparked.
local function ended_of_groups(service, path, refund, used, units, sent_at, reported)
  local groups, unparked = service == ids_of_service and ids_by_path[path] or rated_on_path(service, path), false
  for i = 1, #groups do
    local id, group = groups[i], groups[-i]
    local node, ends = service.users[id], nil
    if node == nil then
      node = read_user(service, id)
    end
    if group == nil then
      group = find_far(service, groups, i)
    end
    if group and group[1] and not refund and not reported and (not used or used <= units) then
      ends = not sent_at and ends_by_per[group[2]] or end_of(group[2], sent_at)
    end
    if ends and (group[7] == 0 or group[10] == ends) then
      group[7], group[8], group[9] = group[7] + 1, group[8] + units, group[9] + (used or units)
      group[10] = ends
      if node and node[PARKED] then
        give_chance(node)
      end
    else
      local found = service.windows[id] or member_window(service, id)
      if found then
        local end_in = refund and not reported and close or window_ended
        end_in(found, units, used, sent_at, reported)
        changed(found, node)
      end
    end
    if not node or node[PARKED] == 0 then
      unparked = true
    end
  end
  return unparked
end

members = {
  window = member_window, score = score, changed = changed, reconsider = reconsider, has_rate = has_rate,
  group_rate = group_rate, group_rates = group_rates, rated_on_path = rated_on_path, take_plan = take_plan,
  window_of_group = window_of_group, advance = advance_members, ended_of_user = ended_of_user,
  ended_of_groups = ended_of_groups,

  -- Count a grant. Returns the mask of all its windows, and the path of the innermost of the user's groups with a rate.
  granted = function(service, user_id, plan, mask, units)
    local groups = rated_groups(service, user_id)
    if service.rates.u or state.q then
      local found = take_plan(service, user_id, plan, member_window(service, user_id))
      if found then
        mask = mask + 8
        open(found, units)
      end
    end
    for i = 1, #groups do
      open(window_of_group(service, groups[i]), units)
    end
    return groups[1] and mask + 16 or mask, groups.path
  end,

  save = function()
    local written, count, gone, scores = {}, 0, {}, {}
    for _, parked in ipairs(late) do -- by a pick after the users were written
      call('HSET', parked[1].keys.users, parked[2][ID], stored_user(parked[2]))
    end
    for i = 1, #services do
      local of_service = services[i].windows
      for id, found in pairs(of_service) do
        local change = found and found[W_CHANGED]
        if change then
          local key = found[W_KEY]
          if found[W_USED] == 0 and found[W_USED_UNITS] == 0 and found[W_REST] == 0 and not found[W_FIRST] then
            gone[#gone + 1], state.n, pack_now = key, state.n - 1, true
            of_service[id] = false
          else
            if found[W_SOME] then
              fold(found, 6)
            end
            count = count + 2
            written[count - 1] = key
            written[count] = text_of(found)
            if change == 2 then
              scores[#scores + 1], scores[#scores + 2] = format('%d', found[W_LOOK]), key
            end
            found[W_CHANGED] = false
          end
        end
      end
    end
    for _, group in pairs(far) do
      if group[1] then
        append_of_group(group)
      end
    end
    for index = 1, text_count do
      if texts_changed[index] then
        count = count + 2
        written[count - 1] = text_keys[index]
        written[count] = texts[index]
        texts_changed[index] = false
      end
    end
    call_many('HDEL', RATES, gone)
    call_many('ZREM', RATED, gone)
    write_many(RATES, written, was_empty)
    call_many('ZADD', RATED, scores, 2)
  end,
}
