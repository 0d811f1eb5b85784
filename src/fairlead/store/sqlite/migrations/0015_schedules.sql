-- Schedules of recurring jobs, and what became of their occurrences.

-- `spec`: JSON, what runs and by which policies. `timing`: JSON, [cron, every, timezone]. `revision` changes with every write.
CREATE TABLE schedule (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL,
    name TEXT,
    declared INTEGER NOT NULL,   -- 1: by the configuration or the code
    spec TEXT NOT NULL,
    timing TEXT NOT NULL,
    secret TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    next_at INTEGER,
    last_at INTEGER,
    waiting_at INTEGER,
    paused_at INTEGER
) WITHOUT ROWID;
CREATE INDEX schedule_due ON schedule (next_at) WHERE paused_at IS NULL;
CREATE INDEX schedule_waiting ON schedule (waiting_at) WHERE paused_at IS NULL AND waiting_at IS NOT NULL;
CREATE INDEX schedule_user ON schedule (user_id);

-- Outcomes: 0 submitted, 1 skipped, 2 missed, 3 refused.
CREATE TABLE schedule_run (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    schedule_id TEXT NOT NULL,
    outcome INTEGER NOT NULL,
    at INTEGER NOT NULL,
    due_at INTEGER,
    job_id TEXT,
    count INTEGER NOT NULL,
    detail TEXT
);
CREATE INDEX schedule_run_of ON schedule_run (schedule_id, seq);
