-- Rates: what their windows count, which users are parked because of their own rate, and the rests that upstreams asked
-- for. Same behaviour as domain/rates.py and dispatch/memory/rates.py. Nothing here is created for a scope without rates.
--
-- `scope.rates` is the field `rates` of META: `p`, the pool's window; `n`, the number of users' windows; and for each
-- service `s[name]`: `o`, its window; `r`, the windows of its regions by name; `u`, the rate of each user, or false; and
-- `m`, the mean units of a call, or false. If there are any, `q` has the rates of plans by name, `g` those of groups by
-- path, and `z` is true if one of them limits units. The windows of members, users and groups, are in the hash RATES,
-- and the times at which they have to be looked at in RATED, both by service NUL id.
--
--- @include windows
if scope.rates then
(function() -- nested, as by @nest
--- @include window
(function()
  local RATES, RATED = KEYS[#KEYS - 1], KEYS[#KEYS]
  local state, was_empty = scope.rates, scope.rates.n == 0
  local late, pack_now, may_park = {}, false, true
  local pack_struct, unpack_struct = struct.pack, struct.unpack

  -- Whether users have rates. Otherwise their windows are not looked for.
  local by_user = state.q and true or false
  for _, of in pairs(state.s) do
    by_user = by_user or of.u and true
  end

  local function counts(window)
    return window and (window[W_REQUESTS] < MIDDLE or window[W_UNITS] < MIDDLE)
  end

  -- The rates of a service, made if they are missing.
  local function rates_of(service)
    local of = service.rates
    if not of then
      of = { o = new_window(), r = {}, u = false, m = false }
      state.s[service.name], service.rates = of, of
    end
    return of
  end

  local function has_rate(window, rate)
    return window[W_REQUESTS] == rate[1] and window[W_UNITS] == rate[2] and window[W_PER] == rate[3]
  end

  -- The rates of each service, and the windows of its members that were read, by id; false: there is none. `texts` has the
  -- index of the text of a window that has not been decoded, in the lists below: its field, the text, and whether it has
  -- to be written.
  for i = 1, #services do
    services[i].rates, services[i].windows, services[i].texts = state.s[services[i].name], {}, {}
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
        local rate, high, low, _, bits, grants = state.g[sub(groups[i], 2)], byte(text, W_TAG + 1, W_TAG + 5)
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
  local function user_window(service, user_id, rate)
    local members = service.windows
    local found = members[user_id]
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
      members[user_id] = found
    end
    if not found and rate then
      found = new_window(rate)
      found[W_KEY] = service.name .. '\0' .. user_id
      members[user_id], state.n, pack_now = found, state.n + 1, true
    end
    return found or nil
  end

  -- Read the windows of many users, if they have rates (`by_user`), or groups, with one command.
  local function read_windows(service, ids)
    if state.n == 0 then
      return
    end
    local members, of_service, prefix, last, count = service.windows, service.texts, service.name .. '\0', text_count, 0
    local keys = last == 0 and text_keys or {}
    for i = 1, #ids do
      local id = ids[i]
      if not of_service[id] and members[id] == nil then
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

  local function cost_at(service, lane, user_id)
    local suffix = first_queued(service, lane, user_id)
    local job = sub(suffix, 18)
    return read_entry(job, call('HGET', ENTRIES, job)).cost
  end

  local units_count = {}
  local function find_units(of)
    if of.o[W_UNITS] < MIDDLE or (of.u and of.u[2] < MIDDLE) or (state.p and state.p[W_UNITS] < MIDDLE) or state.z then
      return true
    end
    for _, window in pairs(of.r) do
      if window[W_UNITS] < MIDDLE then
        return true
      end
    end
    return false
  end

  -- Whether a rate that holds for steps of the service limits units.
  local function counts_units(of)
    local found = units_count[of]
    if found == nil then
      found = find_units(of)
      units_count[of] = found
    end
    return found
  end

  -- The units that the first step of a user reserves. Read only if a rate limits units.
  local function units_at(service, lane, user_id)
    local of = service.rates
    return counts_units(of) and (cost_at(service, lane, user_id) or of.m) or 0
  end

  -- The ids of the groups with a rate: the group of this id, and those that it is in. `path` is that of the innermost.
  local ids_by_group, ids_of_service = {}, nil
  local function rated_ids(service, id)
    if not state.g or service.fifo or not id then
      return NONE
    elseif service ~= ids_of_service then
      ids_by_group, ids_of_service = {}, service
    end
    local found = ids_by_group[id]
    if not found then
      local path = sub(id, 2)
      found = {}
      while path do
        if state.g[path] then
          found[#found + 1], found.path = '\1' .. path, found.path or path
        end
        path = string.find(path, '/', 1, true) and string.match(path, '^(.*)/[^/]*$')
      end
      ids_by_group[id] = found
    end
    return found
  end

  -- The same for a path that a lease names.
  local function rated_on_path(service, path)
    local found = rated_ids(service, '\1' .. path)
    ids_by_group[path] = found
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
      found = rate and user_window(service, user_id, rate)
    end
    if found and not (rate and has_rate(found, rate)) then
      take_rate(found, rate or nil) -- the user has another plan now
      score(service, found, user_id)
    end
    return rate and found
  end

  -- The window of a group, created if needed, with the rate that the group has now.
  local function window_of_group(service, id)
    local rate = state.g[sub(id, 2)]
    local found = user_window(service, id, rate)
    if not has_rate(found, rate) then
      take_rate(found, rate)
    end
    return found
  end

  -- The windows in which a call counts, as a mask: 1 the service's, 2 its region's, 4 the pool's, 8 the user's, 16 those of
  -- the groups. Creates the windows of the user and of the groups, if they have rates.
  local function mask_of(service, user_id, region, plan, groups)
    local of, mask = service.rates, 0
    if not of then
      return 0
    end
    mask = (counts(of.o) and 1 or 0) + (region and counts(of.r[region]) and 2 or 0)
    if scope.pool_limit and state.p and in_pool(service, region) then
      mask = mask + 4
    end
    if (of.u or state.q) and take_plan(service, user_id, plan, user_window(service, user_id)) then
      mask = mask + 8
    end
    for i = 1, #groups do
      window_of_group(service, groups[i])
      mask = i == 1 and mask + 16 or mask
    end
    return mask
  end

  -- Collect the windows of a mask, which the caller changes, in `windows`, and the user and groups that have windows in
  -- `members` and `ids`. Returns their numbers. The lists are used again by the next call, so that nothing is created for
  -- each step.
  local windows, members, ids = {}, {}, {}
  local function collect(service, user_id, region, mask, groups)
    local of, count, known = service.rates or rates_of(service), 0, 0
    if mask % 2 >= 1 then
      count = count + 1
      windows[count] = of.o
    end
    if mask % 4 >= 2 and of.r[region] then
      count = count + 1
      windows[count] = of.r[region]
    end
    if mask % 8 >= 4 and state.p then
      count = count + 1
      windows[count] = state.p
      for _, each in ipairs(pooled) do -- whether their steps fit changes too
        touch(each)
      end
    end
    pack_now = pack_now or count > 0
    if state.n == 0 then
      return count, 0
    end
    local own, read = mask % 16 >= 8, service.windows
    for i = (own or by_user) and 0 or 1, #groups do
      local id = groups[i] or user_id
      local found = read[id]
      if found == nil then
        found = user_window(service, id)
      end
      if found then
        known = known + 1
        members[known], ids[known] = found, id
        if own or i > 0 then
          count = count + 1
          windows[count] = found
        end
      end
    end
    return count, known
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

  -- Count a grant of these units.
  local function open(window, units)
    window[W_OPEN], window[W_USED] = window[W_OPEN] + 1, window[W_USED] + 1
    if units > 0 then
      window[W_OPEN_UNITS], window[W_USED_UNITS] = window[W_OPEN_UNITS] + units, window[W_USED_UNITS] + units
    end
    if window[W_LOOK] > 0 then
      window[W_CHANGED] = window[W_CHANGED] or 1
    elseif window[W_KEY] then
      window[W_LOOK], window[W_CHANGED] = MIDDLE, 2 -- it is new
    end
  end

  local function advance_users()
    local looks = {}
    for _, key in ipairs(state.n > 0 and call('ZRANGEBYSCORE', RATED, '-inf', format('%d', now)) or NONE) do
      local name, user_id = string.match(key, '^(%Z*)%z(.*)$')
      local service = by_name[name]
      local window = service and user_window(service, user_id)
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

  local function first_end(window)
    local ends = window[W_OLDER] and window[W_NEXT] or window[W_FIRST] or MIDDLE
    return window[W_REST] > 0 and math.min(window[W_REST], ends) or ends
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
        found = user_window(service, id)
      end
      if found and not window_fits(found, units) then
        return hold(service, id, found, units)
      end
    end
  end

  -- Of the service whose steps are taken, from `begin` to `finish`: its window, the units used in it and their limit, 1 if
  -- it limits anything, the number and units of the steps taken, its users' rate, the mean units of a call, and whether a
  -- rate limits units.
  local own, own_used, own_most, own_mask, opened, opened_units, rate_of_users, mean_units, with_units

  rates = {
    take_rate = take_rate, new_window = new_window, rates_of = rates_of,
    user_window = user_window, read_members = read_windows, state = state,

    changed = function()
      pack_now = true
    end,

    -- No user is parked by what is called between `peek(true)` and `peek(false)`.
    peek = function(on)
      may_park = not on
    end,

    by_user = by_user,

    -- Before `take`, for a service with rates. Returns whether these may park a user or a group; and whether `take`
    -- depends on more of a step than its user.
    begin = function(service)
      local of = service.rates
      own, rate_of_users, mean_units, with_units = of.o, of.u, of.m or 0, counts_units(of)
      own_used, own_most, opened, opened_units = own[W_USED_UNITS], own[W_UNITS], 0, 0
      own_mask = (own[W_REQUESTS] < MIDDLE or own_most < MIDDLE) and 1 or 0
      return (of.u or state.q or state.g) and true or false, state.q or with_units
    end,

    -- After `take`: count the grants in the window of the service.
    finish = function()
      if own_mask == 1 and opened > 0 then
        pack_now = true
        own[W_OPEN], own[W_USED] = own[W_OPEN] + opened, own[W_USED] + opened
        own[W_OPEN_UNITS], own[W_USED_UNITS] = own[W_OPEN_UNITS] + opened_units, own[W_USED_UNITS] + opened_units
      end
    end,

    -- Whether a claim that leaves out some bands or regions could overtake a step that the rate of the service or its pool
    -- does not allow yet.
    may_overtake = function(service, bands, regions)
      local of = service.rates
      return of and (regions or not service.fifo and #bands < 4) and (state.p or of.o[W_UNITS] < MIDDLE)
    end,

    -- Count the grant of a user's next step, in a scope without regions and pool, if the rates allow it now: for the
    -- service, by `finish`. The caller takes no more steps than `room`. Returns as `granted`, with mask 0 if no window
    -- counts it; nil if the units of the service keep it from being granted; false if the rate of the user or one of its
    -- groups does, which is then parked.
    take = function(service, user, cost, plan)
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
            found = user_window(service, id)
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
            local of_group = service.windows[id] or user_window(service, id)
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
    end,

    room = function(service, free)
      local of = service.rates
      return of and math.min(free, room(of.o)) or free
    end,

    region_room = function(service, region, free)
      local of = service.rates
      return of and of.r[region] and math.min(free, room(of.r[region])) or free
    end,

    pool_room = function(free)
      return state.p and math.min(free, room(state.p)) or free
    end,

    -- Whether the rate of the user, or of one of its groups, keeps the user's first step from being granted. If so, the
    -- user or the group is parked.
    parks = function(service, lane, user_id)
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
    end,

    -- Whether the rates of the service and its pool allow the chosen step.
    fits = function(service, chosen)
      local of = service.rates
      if not of then
        return true
      end
      local units = units_at(service, chosen.lane, chosen.user)
      return window_fits(of.o, units)
        and not (state.p and scope.pool_limit and in_pool(service, chosen.region) and not window_fits(state.p, units))
    end,

    -- Those of the regions whose rate allows the first step of a user.
    fitting = function(service, lane, user_id, regions)
      local of = service.rates
      if not of or not next(of.r) then
        return regions
      end
      local units, found = units_at(service, lane, user_id), {}
      for _, region in ipairs(regions) do
        if not of.r[region] or window_fits(of.r[region], units) then
          found[#found + 1] = region
        end
      end
      return found
    end,

    -- Count a grant. Returns the mask of its windows, its units, and the path of the innermost of the user's groups with a
    -- rate; or nothing.
    granted = function(service, user_id, region, cost, plan)
      local groups = rated_groups(service, user_id)
      local mask = mask_of(service, user_id, region, plan, groups)
      if mask == 0 then
        return nil
      end
      local units, count = cost or service.rates.m or 0, collect(service, user_id, region, mask, groups)
      for i = 1, count do
        open(windows[i], units)
      end
      return mask, units, groups.path
    end,

    -- The call of a grant has ended, or was never made. Returns whether a group is to be unparked by `groups_ended`. The
    -- caller calls `count_ended` before it uses the window of the service.
    ended = function(service, user, region, refund, used, mask, units, sent_at, granted, after, path)
      local of = service.rates
      if used and not refund and of then
        of.m, pack_now = smoothed(of.m, used), true
      end
      if not mask then
        return false
      end
      local reported, shared = sent_at and true or false, mask % 8
      local end_in = refund and not reported and close or window_ended
      sent_at = sent_at or (after and math.min(now, granted + after))
      if shared == 1 and of then
        pack_now = true
        if reported or refund then
          end_in(of.o, units, used, sent_at, reported)
        else
          ended_late(of.o, units, used, sent_at)
        end
      elseif shared > 0 then
        for i = 1, collect(service, user[ID], region, shared, NONE) do
          end_in(windows[i], units, used, sent_at, reported)
        end
      end
      if by_user or mask % 16 >= 8 then
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
        else
          local found = service.windows[id]
          if found == nil then
            found = user_window(service, id)
          end
          if found then
            if mask % 16 >= 8 then
              end_in(found, units, used, sent_at, reported)
            end
            changed(found, user)
          end
        end
      end
      local groups, unparked = path and (service == ids_of_service and ids_by_group[path]
        or rated_on_path(service, path)) or NONE, false
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
          local found = service.windows[id] or user_window(service, id)
          if found then
            end_in(found, units, used, sent_at, reported)
            changed(found, node)
          end
        end
        if not node or node[PARKED] then
          unparked = unparked or not node or node[PARKED] == 0
        end
      end
      return unparked
    end,

    count_ended = count_late,

    -- After `ended`: look again at the groups of this path. The user may be in another group now.
    groups_ended = function(service, path)
      local groups = rated_on_path(service, path)
      for i = 1, #groups do
        local group = read_user(service, groups[i])
        if group and group[PARKED] == 0 then
          reconsider(service, group)
        end
      end
    end,

    advance = function()
      for _, service in ipairs(services) do
        local of = service.rates
        if of then
          local over = window_advance(of.o)
          for _, window in pairs(of.r) do
            over = window_advance(window) or over
          end
          if over then
            pack_now = true
            touch(service)
          end
        end
      end
      if state.p and window_advance(state.p) then
        pack_now = true
        for _, service in ipairs(pooled) do
          touch(service)
        end
      end
      advance_users()
    end,

    -- µs until a rate that keeps steps waiting may allow the next one, as text; empty if there is none.
    due = function()
      local due, blocked = MIDDLE, false
      for _, service in ipairs(services) do
        local of = service.rates
        if of and not service.runnable and service.waiting[1] + service.waiting[2] + service.waiting[3] > 0 then
          blocked = true
          due = math.min(due, first_end(of.o))
          for _, window in pairs(of.r) do
            due = math.min(due, first_end(window))
          end
        end
      end
      if not blocked then
        return ''
      end
      due = state.p and math.min(due, first_end(state.p)) or due
      if state.n > 0 then
        due = math.min(due, tonumber(call('ZRANGE', RATED, '0', '0', 'WITHSCORES')[2]) or MIDDLE)
      end
      return due < MIDDLE and format('%d', math.max(0, due - now)) or ''
    end,

    save = function(fields)
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
      if pack_now then
        for _, of in pairs(state.s) do
          fold_many(of.o)
          for _, window in pairs(of.r) do
            fold_many(window)
          end
        end
        if state.p then
          fold_many(state.p)
        end
        fields[#fields + 1], fields[#fields + 2] = 'rates', pack(state)
      end
    end,
  }

  -- The functions that claims do not use are created when the first of them is looked up.
  setmetatable(rates, {
    __index = function(_, name)
      -- µs until `missing` requests (`at` 1) or units (`at` 2) are free: what is freed is used at once, and is free again
      -- after `per`. What is `taken` beyond `most`, by a step larger than the window or before the rate was lowered, is
      -- not used again.
      local function freed(window, missing, taken, most, at)
        local whole = floor(math.max(0, missing - 1 - math.max(0, taken - most)) / most)
        local rest = missing - 1 - whole * most
        unfold(window)
        for entry = W_FIRST, #window, 3 do
          rest = rest - window[entry + at]
          if rest < 0 then
            return whole * window[W_PER] + math.max(0, window[entry] - now)
          end
        end
        return (whole + 1) * window[W_PER]
      end

      -- The later of two times: when the window has the units, if each call before uses what is expected; and when enough
      -- calls have ended, because until then each keeps all that it has reserved.
      local function wait_for_units(window, demand, duration)
        local most, held, waits, ahead = window[W_UNITS], window[W_OPEN_UNITS], 0, demand.steps - 1
        local own, own_use = math.max(1, math.min(demand.own, most)), math.max(1, math.min(demand.own_use, most))
        local reserved, use = math.min(demand.reserved, ahead * most), math.min(demand.use, ahead * most)
        local counted, running = window[W_USED_UNITS] - held, held
        if demand.mean then
          running = math.min(held, demand.scale and floor(held * demand.scale)
            or window[W_OPEN] * math.max(1, math.min(demand.mean, most)))
        end
        local taken = counted + running
        local missing = taken + use + own - most
        if missing > 0 then
          local each = math.max(1, floor((reserved + own) / demand.steps))
          local each_use = math.max(1, floor((use + own_use) / demand.steps))
          -- A step that does not fit keeps all others waiting, so the window is full with a whole number of them. One that is
          -- due to fit exactly, but for a rounded mean, counts.
          local full = math.min(most, math.max(1, floor((most + floor(most / 100)) / each)) * each)
          waits = freed(window, missing, taken, math.max(1, math.min(most, full - each + each_use)), 2)
        end
        local left = math.max(0, most - counted)
        local over = held + reserved + own - left
        if not demand.mean or over <= 0 or duration <= 0 then
          return waits
        end
        reserved, use = reserved + own, use + own_use
        local steady = floor(most * (reserved / (reserved + use * (math.max(0, window[W_PER] - duration) / duration))))
        local room = math.max(own, steady, left - floor(over * (use / reserved) / 2))
        return math.max(waits, floor(duration * (over / room)))
      end

      -- µs until the step of this demand fits. `duration` is how long calls take.
      local function window_wait(window, demand, duration)
        local waits = window[W_REST] > 0 and window[W_REST] - now or 0
        local missing = window[W_USED] + demand.steps - window[W_REQUESTS]
        if window[W_REQUESTS] < MIDDLE and missing > 0 then
          waits = math.max(waits, freed(window, missing, window[W_USED], window[W_REQUESTS], 1))
        end
        if window[W_UNITS] < MIDDLE then
          waits = math.max(waits, wait_for_units(window, demand, duration))
        end
        return math.max(0, waits)
      end

      local function row_of(rows, kind, name, window)
        if counts(window) or window[W_REST] > 0 then
          rows[#rows + 1] = { kind, name, window[W_REQUESTS], window[W_UNITS], window[W_PER], window[W_USED],
            window[W_USED_UNITS], window_due(window, 0) or -1, window[W_REST] }
        end
      end

      local others = {
        window_wait = window_wait,

        -- The call of a grant was sent. Returns when.
        sent = function(service, user_id, region, mask, units, granted, after, path)
          local groups = path and rated_on_path(service, path) or NONE
          local sent_at, count, found = math.min(now, granted + after), collect(service, user_id, region, mask, groups)
          for i = 1, count do
            close(windows[i], units)
            add(windows[i], sent_at + margin(windows[i]), 1, units)
          end
          for i = 1, found do
            local node = read_user(service, ids[i])
            changed(members[i], node)
            if node and node[PARKED] == 0 then
              reconsider(service, node)
            end
          end
          touch(service)
          return sent_at
        end,

        -- Count a call that ended before the queue was rebuilt.
        spent = function(service, user_id, region, ended_at, units, plan, path)
          local groups = path and rated_on_path(service, path) or NONE
          local mask = mask_of(service, user_id, region, plan, groups)
          local count, found = collect(service, user_id, region, mask, groups)
          for i = 1, count do
            add(windows[i], ended_at, 1, units)
          end
          for i = 1, found do
            score(service, members[i], ids[i])
          end
        end,

        -- µs until the rate of a group allows the step of this demand.
        group_wait = function(service, id, demand)
          local found = service.rates and state.g and state.g[sub(id, 2)] and user_window(service, id)
          return found and window_wait(found, demand, service.mean or service.cost) or 0
        end,

        -- What the upstream said about its limits.
        rest = function(service, region, seconds, requests, units)
          local of = rates_of(service)
          local window, until_then = of.o, now + seconds
          if region then
            window = of.r[region] or new_window()
            of.r[region] = window
          end
          pack_now = true
          touch(service)
          if not requests and not units then
            window[W_REST] = math.max(window[W_REST], until_then)
            return
          end
          local more = requests and window[W_REQUESTS] < MIDDLE and math.max(0, room(window) - requests) or 0
          local left = math.max(0, window[W_UNITS] - window[W_USED_UNITS])
          local more_units = units and window[W_UNITS] < MIDDLE and math.max(0, left - units) or 0
          if more > 0 or more_units > 0 then
            add(window, until_then - window[W_PER], more, more_units)
          end
        end,

        uses = function(service)
          local rows, of = {}, service.rates
          if of then
            row_of(rows, 'service', service.name, of.o)
            for i = 1, #service.regions, 2 do
              local region = service.regions[i]
              if of.r[region] then
                row_of(rows, 'region', region, of.r[region])
              end
            end
            if state.p and scope.pool_limit then
              row_of(rows, 'pool', '', state.p)
            end
            local paths = {}
            for path in pairs(state.g or NONE) do
              paths[#paths + 1] = path
            end
            table.sort(paths, before)
            for _, path in ipairs(paths) do
              local found = user_window(service, '\1' .. path)
              if found then
                row_of(rows, 'group', path, found)
              end
            end
          end
          return rows
        end,

        -- Apply changed rates to the windows of members. `pairs_of_rates` are {old, new or false}: which plan a user has is
        -- not stored, so a window that has the old rate of a plan gets the new one.
        change_members = function(service, pairs_of_rates)
          local prefix = service.name .. '\0'
          for _, key in ipairs(state.n > 0 and call('HKEYS', RATES) or NONE) do
            if sub(key, 1, #prefix) == prefix then
              local id = sub(key, #prefix + 1)
              local found, rate = user_window(service, id), nil
              if byte(id) == 1 then
                rate = state.g and state.g[sub(id, 2)] or false
              else
                for _, pair in ipairs(pairs_of_rates) do
                  if rate == nil and pair[1] and has_rate(found, pair[1]) then
                    rate = pair[2] or false
                  end
                end
              end
              if rate == false then
                for at = #found, W_FIRST, -1 do
                  found[at] = nil
                end
                for at = W_REST, W_USED_UNITS do
                  found[at] = 0
                end
                found[W_OLDER], found[W_CHANGED] = false, 1
              else
                if rate then
                  take_rate(found, rate)
                end
                score(service, found, id)
              end
            end
          end
        end,
      }
      for key, value in pairs(others) do
        rates[key] = value
      end
      return others[name]
    end,
  })
end)()
end)()
end
