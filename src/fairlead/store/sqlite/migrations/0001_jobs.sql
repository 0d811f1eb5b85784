-- Times are whole microseconds since the epoch, UTC: exact as integers, where SQLite's JSON would round a float.
-- Statuses: 0 SCHEDULED, 1 PENDING, 2 RETRYING, 3 RUNNING, 4 COMPLETED, 5 FAILED, 6 CANCELLED,
-- so that `status < 3` waits and `status < 4` is open. Priorities are bands: 1 high, 2 medium, 3 low.

-- The row that changes. Every transition rewrites it, so large and immutable values are in other tables.
-- `seq` is the order of acceptance; AUTOINCREMENT because the seq of a deleted job must never be reused.
CREATE TABLE job (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    user_id TEXT NOT NULL,
    feature_name TEXT NOT NULL,
    status INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    step INTEGER NOT NULL DEFAULT 0,
    run INTEGER NOT NULL DEFAULT 0,
    attempt INTEGER NOT NULL DEFAULT 0,
    round INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    queued_at INTEGER,
    waiting_since INTEGER,
    scheduled_at INTEGER,
    promoted_at INTEGER,
    started_at INTEGER,
    finished_at INTEGER,
    last_progress_at INTEGER,
    timer_at INTEGER,
    deadline_at INTEGER,
    lease TEXT,
    worker TEXT,
    call_started_at INTEGER,
    call_deadline INTEGER,
    retryable INTEGER,
    error TEXT,       -- JSON
    progress TEXT,    -- JSON
    spec TEXT NOT NULL -- JSON, never changed and not used in queries: [steps, original_priority, cost, weight, region, allowed_regions]
);

-- list_jobs and count of one user.
CREATE INDEX job_by_user ON job (user_id, seq);
-- waiting, running, promotable, next_promotion.
CREATE INDEX job_open ON job (status, priority, queued_at) WHERE status < 4;
-- The limit of waiting jobs per user, counted at submit.
CREATE INDEX job_waiting_by_user ON job (user_id) WHERE status < 3;
-- timers, next_timer. Few jobs have a timer.
CREATE INDEX job_timer ON job (timer_at) WHERE timer_at IS NOT NULL;
-- Prune.
CREATE INDEX job_finished ON job (status, finished_at) WHERE status > 3;
-- list_jobs of the dead letters: rare among millions, so a walk by seq would not find them.
CREATE INDEX job_dead ON job (status, seq) WHERE status > 4;

-- What the caller gave. Insert-only.
CREATE TABLE job_input (
    seq INTEGER PRIMARY KEY,
    input TEXT NOT NULL
);

-- Metadata and idempotency key, for the jobs that have one. Insert-only.
CREATE TABLE job_note (
    seq INTEGER PRIMARY KEY,
    metadata TEXT,
    idempotency_key TEXT
);

CREATE TABLE idempotency (
    user_id TEXT NOT NULL,
    key TEXT NOT NULL,
    body_hash TEXT,
    job_id TEXT NOT NULL,
    PRIMARY KEY (user_id, key)
) WITHOUT ROWID;

-- One per step that is done and round. Insert-only.
CREATE TABLE step_result (
    seq INTEGER NOT NULL,
    step INTEGER NOT NULL,
    round INTEGER NOT NULL,
    service TEXT NOT NULL,
    data TEXT NOT NULL,
    metrics TEXT NOT NULL,
    finished_at INTEGER NOT NULL,
    lease TEXT,
    PRIMARY KEY (seq, step, round)
) WITHOUT ROWID;

-- One per failed call, keyed by the run that its end required. Insert-only.
CREATE TABLE attempt (
    seq INTEGER NOT NULL,
    run INTEGER NOT NULL,
    step INTEGER NOT NULL,
    service TEXT NOT NULL,
    round INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    error TEXT NOT NULL,
    started_at INTEGER,
    ended_at INTEGER NOT NULL,
    worker TEXT,
    region TEXT,
    PRIMARY KEY (seq, run)
) WITHOUT ROWID;

-- "This job changed; update the dispatcher." AUTOINCREMENT because two processes may delete a row by its id: the second
-- one must never delete a new row with the same id.
CREATE TABLE outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id TEXT NOT NULL,
    origin TEXT NOT NULL,
    written_at INTEGER NOT NULL
);

CREATE TABLE hold (
    id TEXT PRIMARY KEY,
    job_id TEXT NOT NULL,
    service TEXT NOT NULL,
    region TEXT,
    until INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE epoch (
    scope TEXT PRIMARY KEY,
    number INTEGER NOT NULL
) WITHOUT ROWID;

-- The last declaration, as JSON, and the version, which every declaration and override raises.
CREATE TABLE rules (
    version INTEGER NOT NULL,
    declared TEXT NOT NULL
);
INSERT INTO rules VALUES (0, '{"pools":{},"services":[]}');

-- Run-time overrides, kept until lifted, whatever is declared meanwhile.
CREATE TABLE service_override (
    service TEXT PRIMARY KEY,
    slots INTEGER,
    paused INTEGER
) WITHOUT ROWID;
