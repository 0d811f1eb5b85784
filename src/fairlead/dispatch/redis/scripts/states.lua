-- states: read the states of scopes, and the server's identity, at one point in time.
--
--   KEYS   meta, one per scope
--
-- Returns {role, run id, replication id, then per scope: epoch and open, as stored or false}.
local function field(text, name)
  return string.match(text, name .. ':([^\r\n]*)')
end

local server, replication = redis.call('INFO', 'server'), redis.call('INFO', 'replication')
local reply = { field(replication, 'role'), field(server, 'run_id'), field(replication, 'master_replid') }
for _, meta in ipairs(KEYS) do
  local read = redis.call('HMGET', meta, 'epoch', 'open')
  reply[#reply + 1] = read[1]
  reply[#reply + 1] = read[2]
end
return reply
