-- Batches: many jobs submitted as one. All of it is beside the jobs, so a process of the release before goes on with the
-- file as it knows it.

-- `finished_at` and `counts` are written when every item has ended, and are NULL again when one is taken up again.
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
-- list_batches of one user. The ids are in the order of their making.
CREATE INDEX job_batch_by_user ON job_batch (user_id, id);
-- batch_of_key, and what keeps two requests with one key from making two batches.
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
-- batch_item by the caller's own name.
CREATE UNIQUE INDEX batch_item_custom ON batch_item (batch_id, custom_id) WHERE custom_id IS NOT NULL;
-- Which batch is open again now that this job is.
CREATE INDEX batch_item_job ON batch_item (job_id);
