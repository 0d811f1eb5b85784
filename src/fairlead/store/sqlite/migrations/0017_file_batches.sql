-- Batches whose requests are the lines of a file. `data` is JSON.
CREATE TABLE file_batch (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    ended_at INTEGER,
    data TEXT NOT NULL
) WITHOUT ROWID;
-- list_file_batches of one user. Ids are in the order of creation.
CREATE INDEX file_batch_by_user ON file_batch (user_id, id);
-- open_file_batches: few are open at a time.
CREATE INDEX file_batch_open ON file_batch (id) WHERE ended_at IS NULL;
-- PruneFileBatches.
CREATE INDEX file_batch_ended ON file_batch (ended_at) WHERE ended_at IS NOT NULL;
