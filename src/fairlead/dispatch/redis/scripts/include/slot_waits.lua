-- When slots are free for waiting steps, computed from the ends of the running calls. Same behaviour as `slot_waits` in
-- domain/fair_share.py.
--
--- @const ONE_BY_ONE 64

-- Add to the smallest number of a heap.
local function add_to_first(heap, more)
  local value, at, count = heap[1] + more, 1, #heap
  while true do
    local child = 2 * at
    if child > count then
      break
    end
    if child < count and heap[child + 1] < heap[child] then
      child = child + 1
    end
    if heap[child] >= value then
      break
    end
    heap[at], at = heap[child], child
  end
  heap[at] = value
end

-- Set `wait` of each mark {steps ahead, their work}: the time until these have had a slot and another slot is free.
-- `ends` are the remaining times of the running calls, `expected` the duration of a call.
local function set_slot_waits(marks, ends, slots, free, expected)
  local busy, heap = math.max(0, slots - free), {}
  table.sort(ends)
  for i = 1, slots - busy do
    heap[i] = 0
  end
  for i = math.max(0, #ends - busy) + 1, #ends do
    heap[#heap + 1] = ends[i]
  end
  for i = #heap + 1, slots do
    heap[i] = floor(expected / 2)
  end
  table.sort(heap)
  table.sort(marks, function(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end)
  local given, work_given = 0, 0
  for _, mark in ipairs(marks) do
    local steps, work = mark[1], mark[2]
    local until_step = math.min(steps, ONE_BY_ONE)
    if given < until_step then
      local each = floor(math.max(0, work - work_given) / (steps - given))
      for _ = given + 1, until_step do
        add_to_first(heap, each)
      end
      work_given, given = work_given + each * (until_step - given), until_step
    end
    mark.wait = heap[1] + floor(math.max(0, work - work_given) / slots)
  end
end
