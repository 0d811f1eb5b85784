-- Costs in the service's own unit: what was learned from calls, and the costs that wait. Same behaviour as
-- dispatch/memory/costs.py and domain/costs.py. Durations are in µs, costs in millionths of the unit.
--
-- The costs of a service are a list: whether the unit is seconds, whether calls are charged by use, the number of
-- waiting steps that state a cost; three ratios, each as number of calls, mean above and mean below: µs per stated cost,
-- µs per use, use per stated cost; then for each region its name and its own µs per stated cost.
--
--- @const IN_SECONDS 1
--- @const BY_USED 2
--- @const STATED 3
--- @const PER_COST 4
--- @const PER_USED 7
--- @const USED_PER_COST 10
--- @const COST_REGIONS 13
--- @const ENOUGH 8
--- @const LARGEST 16
--- @const LONGEST 1000000000000

local function costs_of(service)
  local costs = service.costs
  if not costs then
    costs = service.stored_costs and { unpack_of(service.stored_costs) } or { true, false, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
    service.costs = costs
  end
  return costs
end

-- The other functions are created when a cost or a use is stated first.
local cost_functions
local function of_costs()
  if not cost_functions then
    -- The amount that corresponds to a sum over `steps` steps by the ratio at this index.
    local function scaled(costs, at, sum, steps)
      local amount = sum * costs[at + 1] / costs[at + 2]
      return amount < steps * LONGEST and amount - amount % 1 or steps * LONGEST
    end

    -- The index of the ratio for calls in this region.
    local function ratio_at(costs, region)
      for at = region and COST_REGIONS or #costs + 1, #costs, 4 do
        if costs[at] == region and costs[at + 1] >= ENOUGH then
          return at + 1
        end
      end
      return PER_COST
    end

    local function learn(costs, at, over, under)
      if under > 0 then
        local count, above, below = costs[at], costs[at + 1], costs[at + 2]
        if count > 0 and under > LARGEST * below then -- its ratio counts, with the weight of the largest call that may
          over = over * (LARGEST * below / under)
          over, under = over - over % 1, LARGEST * below
        end
        count = count < 64 and count + 1 or 64
        over, under = (over - above) / count, (under - below) / count
        costs[at], costs[at + 1], costs[at + 2] = count, above + (over - over % 1), below + (under - under % 1)
      end
    end

    -- Learn from a call that took `real` and stated `cost`, or used `used`. Returns what it is charged, before the weight.
    local function settled(service, real, cost, used, region)
      local costs = service.costs or costs_of(service)
      service.costs_changed = true
      if cost then
        learn(costs, PER_COST, real, cost)
        if region then
          local at = COST_REGIONS
          while costs[at] and costs[at] ~= region do
            at = at + 4
          end
          if not costs[at] then
            costs[at], costs[at + 1], costs[at + 2], costs[at + 3] = region, 0, 0, 0
          end
          learn(costs, at + 1, real, cost)
        end
        if used then
          learn(costs, USED_PER_COST, used, cost)
        end
      end
      if not used then
        return real
      end
      learn(costs, PER_USED, real, used)
      return costs[BY_USED] and costs[PER_USED] > 0 and scaled(costs, PER_USED, used, 1) or real
    end

    -- Count waiting steps that state a cost, or with negative numbers steps that wait no more. The sums, by lane and user or
    -- by FIFO lane, are written by `save`.
    local function count_costs(service, lane, user_id, steps, cost)
      local costs, sums, counts = service.costs or costs_of(service), service.waiting_costs, service.waiting_stated
      if not sums then
        sums, counts, service.costs_changed = {}, {}, true
        service.waiting_costs, service.waiting_stated = sums, counts
      end
      costs[STATED] = costs[STATED] + steps
      local key = service.fifo and lane or lane .. '\0' .. user_id
      sums[key], counts[key] = (sums[key] or 0) + cost, (counts[key] or 0) + steps
    end

    cost_functions = { scaled = scaled, ratio_at = ratio_at, settled = settled, count = count_costs }
  end
  return cost_functions
end
