-- What a window counts (include/windows.lua). Same behaviour as domain/rates.py. Included where a scope has rates.
local unpack_limit = cmsgpack.unpack_limit

-- Append the packed entries to the list again.
local function unfold(window)
  if window[W_OLDER] then
    local entries = { unpack_of(window[W_OLDER]) }
    local older, last = #entries, #window
    for at = last, W_FIRST, -1 do
      window[at + older] = window[at]
    end
    for i = 1, older do
      window[W_FIRST - 1 + i] = entries[i]
    end
    window[W_OLDER], window[W_NEXT] = false, 0
  end
end

-- Pack all entries but the last ones, which take this many values: each costs 0.1 µs whenever the window is written.
local function fold(window, left)
  local last = #window
  local kept = last - left + 1
  if not window[W_OLDER] then
    window[W_OLDER], window[W_NEXT] = '', window[W_FIRST]
  end
  window[W_OLDER] = window[W_OLDER] .. pack(unpack(window, W_FIRST, kept - 1))
  for at = W_FIRST, last do
    window[at] = window[at + kept - W_FIRST]
  end
end

local function fold_many(window)
  if window[W_MANY] then
    fold(window, 12)
  end
end

local function take_rate(window, rate)
  unfold(window)
  local per = rate and rate[3] or 1000000
  local shift = window[W_PER] > 0 and per - window[W_PER] or 0
  window[W_PER], window[W_REQUESTS], window[W_UNITS] = per, rate and rate[1] or MIDDLE, rate and rate[2] or MIDDLE
  for at = W_FIRST, #window, 3 do
    window[at] = window[at] + shift
  end
  return window
end

local function new_window(rate)
  return take_rate({ false, false, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, false }, rate)
end

local function margin(window)
  return math.min(1000000, floor(window[W_PER] / 40))
end

local function rounded(window, time)
  return time + -time % floor(window[W_PER] / 100)
end

-- How many requests may be granted now, as far as this can be known without their units.
local function room(window)
  if window[W_REST] > 0 or (window[W_UNITS] < MIDDLE and window[W_USED_UNITS] >= window[W_UNITS]) then
    return 0
  end
  return window[W_REQUESTS] < MIDDLE and math.max(0, window[W_REQUESTS] - window[W_USED]) or MIDDLE
end

-- One with more units than the rate allows goes alone, when the window has none.
local function window_fits(window, units)
  local most, used = window[W_UNITS], window[W_USED_UNITS]
  return window[W_REST] == 0 and window[W_USED] < window[W_REQUESTS]
    and (most == MIDDLE or used < most and (used + units <= most or used == 0))
end

local function units_fit(window, units)
  local most, used = window[W_UNITS], window[W_USED_UNITS]
  return used < most and (used + units <= most or used == 0)
end

-- The time at which such a request fits: 0 if it does now, nil if that depends on calls that have not been sent.
local function window_due(window, units)
  if window_fits(window, units) then
    return 0
  end
  local requests, over = window[W_USED] + 1 - window[W_REQUESTS], 0
  if window[W_UNITS] < MIDDLE then
    over = window[W_USED_UNITS] + math.max(1, math.min(units, window[W_UNITS])) - window[W_UNITS]
  end
  if window[W_REQUESTS] == MIDDLE then
    requests = 0
  end
  local due = window[W_REST]
  unfold(window)
  for at = W_FIRST, #window, 3 do
    if requests <= 0 and over <= 0 then
      break
    end
    due = math.max(due, window[at])
    requests, over = requests - window[at + 1], over - window[at + 2]
  end
  return requests <= 0 and over <= 0 and due or nil
end

-- Count requests and units that the provider has counted by this time.
local function add(window, counted_at, requests, units)
  local ends, at = rounded(window, counted_at + window[W_PER]), #window + 1
  window[W_USED], window[W_USED_UNITS] = window[W_USED] + requests, window[W_USED_UNITS] + units
  while at > W_FIRST and window[at - 3] > ends do
    at = at - 3
    if at == W_FIRST and window[W_OLDER] then
      unfold(window)
      at = #window + 1
    end
  end
  if at > W_FIRST and window[at - 3] == ends then
    window[at - 2], window[at - 1] = window[at - 2] + requests, window[at - 1] + units
    return
  end
  for i = #window, at, -1 do
    window[i + 3] = window[i]
  end
  window[at], window[at + 1], window[at + 2] = ends, requests, units
end

local function subtract_units(window, ends, units)
  if (window[W_FIRST] or 0) > ends then
    unfold(window)
  end
  for at = #window - 2, W_FIRST, -3 do
    if window[at] == ends then
      units = math.min(units, window[at + 2])
      window[at + 2], window[W_USED_UNITS] = window[at + 2] - units, window[W_USED_UNITS] - units
    end
    if window[at] <= ends then
      return
    end
  end
end

-- Remove an open grant. The numbers may be smaller than expected if the rate was removed in between.
local function close(window, units)
  local requests = window[W_OPEN] > 0 and 1 or 0
  units = units < window[W_OPEN_UNITS] and units or window[W_OPEN_UNITS]
  window[W_OPEN], window[W_OPEN_UNITS] = window[W_OPEN] - requests, window[W_OPEN_UNITS] - units
  window[W_USED], window[W_USED_UNITS] = window[W_USED] - requests, window[W_USED_UNITS] - units
end

-- Drop what is over, at an earlier time than now if it is given. Returns whether anything was.
local function window_advance(window, time)
  local over, packed, now = 0, false, time or now
  while window[W_OLDER] and window[W_NEXT] <= now do
    local older, at, _, requests, units = window[W_OLDER], unpack_limit(window[W_OLDER], 3, 0)
    window[W_USED], window[W_USED_UNITS], packed = window[W_USED] - requests, window[W_USED_UNITS] - units, true
    if at > 0 then
      window[W_OLDER] = sub(older, at + 1)
      _, window[W_NEXT] = unpack_limit(older, 1, at)
    else
      window[W_OLDER], window[W_NEXT] = false, 0
    end
  end
  while not window[W_OLDER] and window[W_FIRST + over] and window[W_FIRST + over] <= now do
    local at = W_FIRST + over
    window[W_USED], window[W_USED_UNITS] = window[W_USED] - window[at + 1], window[W_USED_UNITS] - window[at + 2]
    over = over + 3
  end
  if over > 0 then
    local last = #window
    for at = W_FIRST, last do
      window[at] = window[at + over]
    end
    for at = last - over + 1, last do
      window[at] = nil
    end
  end
  local rested = window[W_REST] > 0 and window[W_REST] <= now
  if rested then
    window[W_REST] = 0
  end
  return over > 0 or packed or rested
end

-- The end of the entry in which a call counts that ended now, and was sent by `sent_at` if that is known.
local ends_by_per = {}
local function end_of(per, sent_at)
  local ends = not sent_at and ends_by_per[per]
  if not ends then
    ends = per + (sent_at and math.min(now, sent_at + math.min(1000000, floor(per / 40))) or now)
    ends = ends + -ends % floor(per / 100)
    ends_by_per[per] = not sent_at and ends or nil
  end
  return ends
end

local function window_ended(window, units, used, sent_at, reported)
  if (window[W_OLDER] and window[W_NEXT] or window[W_FIRST] or MIDDLE) <= now then
    window_advance(window) -- a later end of the last entry puts off the next look at a member's window
  end
  local left = used and used < units and used or units
  if reported then
    subtract_units(window, rounded(window, sent_at + margin(window) + window[W_PER]), units - left)
  else
    local per, last, open = window[W_PER], #window - 2, window[W_OPEN]
    local ends = not sent_at and ends_by_per[per] or end_of(per, sent_at)
    local after = last < W_FIRST or window[last] < ends
    if open > 0 and units <= window[W_OPEN_UNITS] and ends > now and (after or window[last] == ends) then
      -- As `close` and `add`, but without calls: the grant moves to the last entry, or to a new one.
      window[W_OPEN] = open - 1
      if after then
        window[last + 3] = ends
        window[last + 4] = 1
        window[last + 5] = left
      else
        window[last + 1], window[last + 2] = window[last + 1] + 1, window[last + 2] + left
      end
      if units > 0 then
        window[W_OPEN_UNITS] = window[W_OPEN_UNITS] - units
        window[W_USED_UNITS] = window[W_USED_UNITS] - units + left
      end
    else
      close(window, units)
      if ends > now then -- otherwise it was sent so long ago that it is over
        add(window, ends - per, 1, left)
      end
    end
  end
  if used and used > units then
    add(window, now, 0, used - units)
  end
end

-- Calls that ended and have not been counted yet, all in one window and, if they add to it, with the same end: their
-- number, the units that they had reserved, that they are counted with, and that they used beyond.
local late_window, late_ends, late_count, late_units, late_left, late_more = false, 0, 0, 0, 0, 0

-- Count calls that ended at this time: their number, the units that they had reserved, and that they are counted with.
local function count_ends(window, requests, units, left, ends, time)
  if (window[W_OLDER] and window[W_NEXT] or window[W_FIRST] or MIDDLE) <= time then
    window_advance(window, time)
  end
  -- The numbers may be smaller than expected, as in `close`.
  local open, reserved = math.min(requests, window[W_OPEN]), math.min(units, window[W_OPEN_UNITS])
  window[W_OPEN], window[W_OPEN_UNITS] = window[W_OPEN] - open, window[W_OPEN_UNITS] - reserved
  window[W_USED], window[W_USED_UNITS] = window[W_USED] - open, window[W_USED_UNITS] - reserved
  if ends > time then -- otherwise they were sent so long ago that they are over
    add(window, ends - window[W_PER], requests, left)
  end
end

local function count_late()
  local window, requests, units = late_window, late_count, late_units
  if not window then
    return
  end
  late_window, late_count, late_units = false, 0, 0
  count_ends(window, requests, units, late_left, late_ends, now)
  if late_more > 0 then
    add(window, now, 0, late_more)
  end
  late_left, late_more = 0, 0
end

-- As `window_ended` without a report, but many calls at once. The caller calls `count_late` at the end.
local function ended_late(window, units, used, sent_at)
  local per = window[W_PER]
  local ends = not sent_at and ends_by_per[per] or end_of(per, sent_at)
  if window ~= late_window or ends ~= late_ends then
    count_late()
    late_window, late_ends = window, ends
  end
  late_count, late_units = late_count + 1, late_units + units
  if used and used < units then
    late_left = late_left + used
  else
    late_left = late_left + units
    if used and used > units then
      late_more = late_more + used - units
    end
  end
end
