-- The region of a running call, and when a job stopped waiting for its preferred region. Processes of the previous
-- release neither read nor write these columns, and adding them rewrites no table.

-- The region of the running call.
ALTER TABLE fairlead.job ADD COLUMN call_region text COLLATE "C";
-- When the job stopped waiting for its `region` and became free to go to others.
ALTER TABLE fairlead.job ADD COLUMN spilled_at bigint;
