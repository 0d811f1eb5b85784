-- For scripts that may write nothing: on a replica a write is refused even if it would change nothing. A master that was
-- demoted has what another server says, and must not call a lease expired or lost.
call('HDEL', META, '')
