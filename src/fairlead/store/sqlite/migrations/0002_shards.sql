-- The dispatcher may be spread over shards, and has a server whose identity counts.
--
-- A process of the release before may have the file open, and goes on: its triggers name the columns that they insert,
-- except for those of `epoch`. So that one stays as it is, and what is new about it has a table of its own.

-- The dispatcher's server on which the scope was built last; none is the same as ''.
CREATE TABLE epoch_server (
    scope TEXT PRIMARY KEY,
    server TEXT NOT NULL
) WITHOUT ROWID;

-- The band that the call was granted in.
ALTER TABLE hold ADD COLUMN band INTEGER NOT NULL DEFAULT 2;
UPDATE hold SET band = coalesce((SELECT priority FROM job WHERE job.id = hold.job_id), 2);
