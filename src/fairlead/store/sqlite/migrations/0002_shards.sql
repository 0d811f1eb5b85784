-- Shards of the dispatcher, and the identity of its server.
--
-- A process of the previous release may have the file open. Its triggers name the columns that they insert, except those
-- of `epoch`, so that table stays unchanged and the new column has its own table.

-- The dispatcher server on which the scope was last built; no row means ''.
CREATE TABLE epoch_server (
    scope TEXT PRIMARY KEY,
    server TEXT NOT NULL
) WITHOUT ROWID;

-- The band of the call.
ALTER TABLE hold ADD COLUMN band INTEGER NOT NULL DEFAULT 2;
UPDATE hold SET band = coalesce((SELECT priority FROM job WHERE job.id = hold.job_id), 2);
