-- Webhooks: receivers with their secrets, and one row for each event and receiver.

-- Without a URL, the row only keeps a secret. Without a user, it receives the events of all users.
CREATE TABLE webhook_endpoint (
    id TEXT PRIMARY KEY,
    user_id TEXT,
    url TEXT,
    events TEXT NOT NULL,    -- JSON: [event, …]
    secrets TEXT NOT NULL,   -- JSON: [[secret, until or null], …]
    name TEXT,               -- of its section in the configuration
    created_at INTEGER NOT NULL,
    disabled_at INTEGER,
    failing_since INTEGER,
    disabled_reason TEXT
) WITHOUT ROWID;

-- States: 0 waiting, 1 delivered, 2 failed. `run` orders the events of a job.
CREATE TABLE webhook_delivery (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    event TEXT NOT NULL,
    receiver TEXT NOT NULL,
    user_id TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    job_id TEXT,
    run INTEGER,
    batch_id TEXT,
    endpoint_id TEXT,
    state INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    next_at INTEGER,
    about TEXT NOT NULL,     -- JSON: what was true at the event
    log TEXT,                -- JSON: the attempts
    body TEXT
);
-- Claims, and the time of the next one.
CREATE INDEX webhook_delivery_due ON webhook_delivery (next_at, receiver) WHERE state = 0;
-- Earlier deliveries of a job, and the list of a job's deliveries.
CREATE INDEX webhook_delivery_job ON webhook_delivery (job_id, run) WHERE job_id IS NOT NULL;
CREATE INDEX webhook_delivery_user ON webhook_delivery (user_id, seq);
CREATE INDEX webhook_delivery_endpoint ON webhook_delivery (endpoint_id, seq) WHERE endpoint_id IS NOT NULL;
-- Prune.
CREATE INDEX webhook_delivery_ended ON webhook_delivery (created_at) WHERE state > 0;

ALTER TABLE job_batch ADD COLUMN webhook TEXT;  -- JSON
