-- Turns: slots whose callers do the work themselves. A process of the release before neither reads nor writes this, and
-- would execute a turn of a service that it serves: turns are for when all processes are of this release.

-- The process whose caller waits for the slot, or has it. NULL: a job. Adding it rewrites no table.
ALTER TABLE fairlead.job ADD COLUMN turn text COLLATE "C";
-- turn_owners, turns_of. Only open turns are in it, and no start of a job touches it.
CREATE INDEX job_turn ON fairlead.job (turn, seq) WHERE turn IS NOT NULL AND ended IS NULL;
