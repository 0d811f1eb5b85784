-- Turns: slots whose callers do the work themselves. Processes of the previous release do not read this column and would
-- execute a turn of a service that they serve: use turns once all processes run this release.

-- The process whose caller waits for the slot, or has it. NULL: a job.
ALTER TABLE job ADD COLUMN turn TEXT;
-- turn_owners, turns_of. Only open turns are in it.
CREATE INDEX job_turn ON job (turn, seq) WHERE turn IS NOT NULL AND status < 4;
