-- Batches: many jobs submitted together. All tables are new, so a process of the previous release keeps running.

-- `finished_at` and `counts` are written when every item has ended, and cleared when one is resumed or re-run.
CREATE TABLE job_batch (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL,
    name TEXT,
    metadata TEXT,        -- JSON
    created_at INTEGER NOT NULL,
    total INTEGER NOT NULL,
    idempotency_key TEXT,
    body_hash TEXT,
    finished_at INTEGER,
    counts TEXT           -- JSON: [[status, how many], …]
) WITHOUT ROWID;
-- list_batches of one user. Ids are in the order of creation.
CREATE INDEX job_batch_by_user ON job_batch (user_id, id);
-- batch_of_key, and the guard against two batches with the same key.
CREATE UNIQUE INDEX job_batch_key ON job_batch (user_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
-- ended_batches: few are open at a time.
CREATE INDEX job_batch_open ON job_batch (id) WHERE finished_at IS NULL;
-- PruneBatches.
CREATE INDEX job_batch_finished ON job_batch (finished_at) WHERE finished_at IS NOT NULL;

-- Insert-only.
CREATE TABLE batch_item (
    batch_id TEXT NOT NULL,
    item INTEGER NOT NULL,
    job_id TEXT NOT NULL,
    custom_id TEXT,
    PRIMARY KEY (batch_id, item)
) WITHOUT ROWID;
-- batch_item by custom_id.
CREATE UNIQUE INDEX batch_item_custom ON batch_item (batch_id, custom_id) WHERE custom_id IS NOT NULL;
-- Finds the batch of a job that is resumed.
CREATE INDEX batch_item_job ON batch_item (job_id);
