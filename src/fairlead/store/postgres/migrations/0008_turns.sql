-- Turns: slots whose callers do the work themselves. Processes of the previous release do not read this column and would
-- execute a turn of a service that they serve: use turns once all processes run this release.

-- The process whose caller waits for the slot or has it. NULL for jobs. Adding it rewrites no table.
ALTER TABLE fairlead.job ADD COLUMN turn text COLLATE "C";
-- turn_owners, turns_of. It contains open turns only, and no start of a job touches it.
CREATE INDEX job_turn ON fairlead.job (turn, seq) WHERE turn IS NOT NULL AND ended IS NULL;
