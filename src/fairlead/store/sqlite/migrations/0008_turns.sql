-- Turns: slots whose callers do the work themselves. A process of the release before neither reads nor writes this, and
-- would execute a turn of a service that it serves: turns are for when all processes are of this release.

-- The process whose caller waits for the slot, or has it. NULL: a job.
ALTER TABLE job ADD COLUMN turn TEXT;
-- turn_owners, turns_of. Only open turns are in it.
CREATE INDEX job_turn ON job (turn, seq) WHERE turn IS NOT NULL AND status < 4;
