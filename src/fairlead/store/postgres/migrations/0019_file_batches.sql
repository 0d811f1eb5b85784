-- Batches whose requests are the lines of a file. `data` is JSON.
CREATE TABLE fairlead.file_batch (
    id text COLLATE "C" PRIMARY KEY,
    user_id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    created_at bigint NOT NULL,
    ended_at bigint,
    data text NOT NULL
);
-- list_file_batches of one user. Ids are in the order of creation.
CREATE INDEX file_batch_by_user ON fairlead.file_batch (user_id, id);
-- open_file_batches: few are open at a time.
CREATE INDEX file_batch_open ON fairlead.file_batch (id) WHERE ended_at IS NULL;
-- PruneFileBatches.
CREATE INDEX file_batch_ended ON fairlead.file_batch (ended_at) WHERE ended_at IS NOT NULL;
