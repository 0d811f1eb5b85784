-- Where a job's call is, and that a job waits no longer for the region it asked for. A process of the release before
-- neither reads nor writes these.

-- Of the call under way.
ALTER TABLE job ADD COLUMN call_region TEXT;
-- When it had waited so long for its `region` that it may go to others.
ALTER TABLE job ADD COLUMN spilled_at INTEGER;
