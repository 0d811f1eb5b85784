-- states: what is known of scopes, and which server says so: both are of one moment.
--
--   KEYS   meta, one per scope
--
-- Returns {role, run id, replication id, then per scope: epoch and open, as stored or false}.
local function line(text, name)
  return string.match(text, name .. ':([^\r\n]*)')
end

local server, replication = redis.call('INFO', 'server'), redis.call('INFO', 'replication')
local answer = { line(replication, 'role'), line(server, 'run_id'), line(replication, 'master_replid') }
for _, meta in ipairs(KEYS) do
  local read = redis.call('HMGET', meta, 'epoch', 'open')
  answer[#answer + 1] = read[1]
  answer[#answer + 1] = read[2]
end
return answer
