-- The region of a running call, and when a job stopped waiting for its preferred region. A process of the previous
-- release neither reads nor writes these columns.

-- The region of the running call.
ALTER TABLE job ADD COLUMN call_region TEXT;
-- When the job stopped waiting for its `region` and became free to go to others.
ALTER TABLE job ADD COLUMN spilled_at INTEGER;
