-- output: append chunks to the output of a job.
--
--   KEYS[1]   the stream of the job
--   ARGV[1]   milliseconds for which the stream is kept
--   ARGV[2]   the number of entries that the stream may have
--   ARGV[3]   the run
--   ARGV[4]   the sequence number of the first chunk
--   ARGV[5]   the sequence number of the last chunk
--   ARGV[6]   the entry
--
-- The id of the entry is run-last, so Redis refuses an entry that was appended before, or of an older run.
-- Returns 1, or 0 if the beginning of the run is lost.
local exists = redis.call('EXISTS', KEYS[1]) == 1
if not exists and tonumber(ARGV[4]) > 0 then
  return 0
end
local added = redis.pcall('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], ARGV[3] .. '-' .. ARGV[5], 'e', ARGV[6])
if type(added) == 'table' and added.err and not string.find(added.err, 'equal or smaller', 1, true) then
  return added
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
