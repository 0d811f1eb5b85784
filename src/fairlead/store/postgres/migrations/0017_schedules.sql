-- Schedules of recurring jobs, and what became of their occurrences.

-- `spec`: JSON, what runs and by which policies. `timing`: JSON, [cron, every, timezone]. `revision` changes with every write.
CREATE TABLE fairlead.schedule (
    id text COLLATE "C" PRIMARY KEY,
    user_id text COLLATE "C" NOT NULL,
    name text COLLATE "C",
    declared boolean NOT NULL,   -- by the configuration or the code
    spec text NOT NULL,
    timing text NOT NULL,
    secret text NOT NULL,
    created_at bigint NOT NULL,
    revision bigint NOT NULL,
    next_at bigint,
    last_at bigint,
    waiting_at bigint,
    paused_at bigint
);
CREATE INDEX schedule_due ON fairlead.schedule (next_at) WHERE paused_at IS NULL;
CREATE INDEX schedule_waiting ON fairlead.schedule (waiting_at) WHERE paused_at IS NULL AND waiting_at IS NOT NULL;
CREATE INDEX schedule_user ON fairlead.schedule (user_id);

-- Outcomes: 0 submitted, 1 skipped, 2 missed, 3 refused.
CREATE TABLE fairlead.schedule_run (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schedule_id text COLLATE "C" NOT NULL,
    outcome smallint NOT NULL,
    at bigint NOT NULL,
    due_at bigint,
    job_id text COLLATE "C",
    count int NOT NULL,
    detail text
);
CREATE INDEX schedule_run_of ON fairlead.schedule_run (schedule_id, seq);
