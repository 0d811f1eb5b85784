-- Where a job's call is, and that a job waits no longer for the region it asked for. Processes of the release before
-- go on beside it: they neither read nor write these, and adding them rewrites no table.

-- Of the call under way.
ALTER TABLE fairlead.job ADD COLUMN call_region text COLLATE "C";
-- When it had waited so long for its `region` that it may go to others.
ALTER TABLE fairlead.job ADD COLUMN spilled_at bigint;
