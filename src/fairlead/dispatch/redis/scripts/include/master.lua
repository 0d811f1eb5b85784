-- Make a script fail on a replica, by a write that changes nothing: a replica refuses every write. A former master that
-- has become a replica has the data of another server, and must not report leases as expired or lost.
call('HDEL', META, '')
