-- The lanes of a band, found by skipping from one to the next in a set that is sorted by lane.
local function lanes_of(key, band)
  local lanes, from = {}, '[' .. band
  while true do
    local member = call('ZRANGEBYLEX', key, from, '(' .. (band + 1), 'LIMIT', '0', '1')[1]
    if not member then
      return lanes
    end
    local lane = string.match(member, '^[^%z]+')
    lanes[#lanes + 1] = lane
    from = '[' .. lane .. '\1'
  end
end
