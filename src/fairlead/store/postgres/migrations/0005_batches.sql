-- Batches: many jobs submitted together. The job table is unchanged, so processes of the previous release keep running.

-- `finished_at` and `counts` are written when every item has ended, and cleared when one is resumed or re-run.
CREATE TABLE fairlead.job_batch (
    id text COLLATE "C" PRIMARY KEY,
    user_id text COLLATE "C" NOT NULL,
    name text,
    metadata text,        -- JSON
    created_at bigint NOT NULL,
    total int NOT NULL,
    idempotency_key text COLLATE "C",
    body_hash text,
    finished_at bigint,
    counts text           -- JSON: [[status, how many], …]
);
-- list_batches of one user. Ids are in the order of creation.
CREATE INDEX job_batch_by_user ON fairlead.job_batch (user_id, id);
-- batch_of_key, and the guard against two batches with the same key.
CREATE UNIQUE INDEX job_batch_key ON fairlead.job_batch (user_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
-- ended_batches: few are open at a time.
CREATE INDEX job_batch_open ON fairlead.job_batch (id) WHERE finished_at IS NULL;
-- PruneBatches.
CREATE INDEX job_batch_finished ON fairlead.job_batch (finished_at) WHERE finished_at IS NOT NULL;

-- Insert-only.
CREATE TABLE fairlead.batch_item (
    batch_id text COLLATE "C" NOT NULL,
    item int NOT NULL,
    job_id text COLLATE "C" NOT NULL,
    custom_id text COLLATE "C",
    PRIMARY KEY (batch_id, item)
);
-- batch_item by custom_id.
CREATE UNIQUE INDEX batch_item_custom ON fairlead.batch_item (batch_id, custom_id) WHERE custom_id IS NOT NULL;
-- Finds the batch of a job that is resumed.
CREATE INDEX batch_item_job ON fairlead.batch_item (job_id);
