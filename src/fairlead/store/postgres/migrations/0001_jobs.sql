-- Times are whole microseconds since the epoch, UTC, as bigint: exact, the same numbers as in the SQLite engine, and
-- read without creating a datetime for each. They come from now() of this database, once per commit.
-- Statuses: 0 SCHEDULED, 1 PENDING, 2 RETRYING, 3 RUNNING, 4 COMPLETED, 5 FAILED, 6 CANCELLED,
-- so that `status < 3` waits and `status < 4` is open. Priorities are bands: 1 high, 2 medium, 3 low.
-- Texts compare byte by byte (COLLATE "C"): nothing here is sorted for people, and an index in the
-- order of a locale can become invalid with an update of the system.

CREATE SEQUENCE fairlead.outbox_id;

-- The row that changes. No index contains `status`, `run` or any other column that a start writes, except the timer that
-- some jobs have. A start is therefore a HOT update, which touches no index. An index of running jobs would prevent that
-- (docs/adr/0005 has figures), so `running` filters the open ones. `ended` is the status once the job is finished and
-- NULL before; it is written once, and the partial indexes are based on it.
-- Input and result are in the row: copying a small one is cheaper than inserting another row, and a large one is stored
-- by TOAST, which an update does not touch.
CREATE TABLE fairlead.job (
    seq bigint GENERATED ALWAYS AS IDENTITY,
    created_at bigint NOT NULL,
    queued_at bigint,
    waiting_since bigint,
    scheduled_at bigint,
    promoted_at bigint,
    started_at bigint,
    finished_at bigint,
    last_progress_at bigint,
    timer_at bigint,
    deadline_at bigint,
    call_started_at bigint,
    call_deadline bigint,
    run int NOT NULL DEFAULT 0,
    step int NOT NULL DEFAULT 0,
    attempt int NOT NULL DEFAULT 0,
    round int NOT NULL DEFAULT 0,
    status smallint NOT NULL,
    ended smallint,
    priority smallint NOT NULL,
    retryable boolean,
    id text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    feature_name text COLLATE "C" NOT NULL,
    lease text COLLATE "C",
    worker text COLLATE "C",
    error text,           -- JSON
    progress text,        -- JSON
    -- JSON, never changed and not used in queries: [steps, original_priority, cost, weight, region, allowed_regions]
    spec text NOT NULL,
    idempotency_key text COLLATE "C",
    metadata text,        -- JSON
    input text NOT NULL,  -- JSON
    -- The last step's result, written by the update that completes the job. Earlier ones are in step_result.
    result_about text,    -- JSON: [step, service, round, finished_at, lease]
    result_data text,     -- JSON
    result_metrics text,  -- JSON
    CONSTRAINT job_id_unique PRIMARY KEY (id)
) WITH (
    fillfactor = 50,                        -- space on the page for the row version that a start writes
    toast_tuple_target = 512,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1
);

-- list_jobs of all users, newest first; and references to a job.
CREATE UNIQUE INDEX job_by_seq ON fairlead.job (seq);
-- list_jobs and count of one user.
CREATE INDEX job_by_user ON fairlead.job (user_id, seq);
-- promotable, next_promotion, waiting, running, and the count of what is open.
CREATE INDEX job_open ON fairlead.job (priority, queued_at) WHERE ended IS NULL;
-- The limit of waiting jobs per user, counted at submit.
CREATE INDEX job_open_by_user ON fairlead.job (user_id) WHERE ended IS NULL;
-- timers, next_timer. Few jobs have a timer, and while one has none its updates stay HOT.
CREATE INDEX job_timer ON fairlead.job (timer_at) WHERE timer_at IS NOT NULL;
-- Prune.
CREATE INDEX job_finished ON fairlead.job (ended, finished_at) WHERE ended IS NOT NULL;
-- list_jobs of the dead letters: rare among millions, so a walk by seq would not find them.
CREATE INDEX job_dead ON fairlead.job (ended, seq) WHERE ended > 4;

CREATE TABLE fairlead.idempotency (
    user_id text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    body_hash text,
    job_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (user_id, key)
);

-- One per finished step and round, except the one that completed the job. Insert-only.
CREATE TABLE fairlead.step_result (
    seq bigint NOT NULL,
    step int NOT NULL,
    round int NOT NULL,
    service text NOT NULL,
    data text NOT NULL,
    metrics text NOT NULL,
    finished_at bigint NOT NULL,
    lease text,
    PRIMARY KEY (seq, step, round)
);

-- One per failed call, keyed by the run that its end required. Insert-only.
CREATE TABLE fairlead.attempt (
    seq bigint NOT NULL,
    run int NOT NULL,
    step int NOT NULL,
    service text NOT NULL,
    round int NOT NULL,
    attempt int NOT NULL,
    error text NOT NULL,
    started_at bigint,
    ended_at bigint NOT NULL,
    worker text,
    region text,
    PRIMARY KEY (seq, run)
);

-- "This job changed; update the dispatcher." Every row is deleted soon after it is written, so dead rows are vacuumed
-- often and at full speed; otherwise a scan of the table would pass them all.
CREATE TABLE fairlead.outbox (
    id bigint PRIMARY KEY,
    written_at bigint NOT NULL,
    job_id text COLLATE "C" NOT NULL,
    origin text COLLATE "C" NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 100000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE fairlead.hold (
    id text COLLATE "C" PRIMARY KEY,
    job_id text COLLATE "C" NOT NULL,
    service text NOT NULL,
    region text,
    until bigint NOT NULL
);

-- A scope without a rebuild has epoch 0. Its row exists from the first start on, so that it can be locked.
CREATE TABLE fairlead.epoch (
    scope text COLLATE "C" PRIMARY KEY,
    number bigint NOT NULL
) WITH (fillfactor = 50);

-- The last declaration, as JSON, and the version, which every declaration and override raises.
CREATE TABLE fairlead.rules (
    version int NOT NULL,
    declared text NOT NULL
);
INSERT INTO fairlead.rules VALUES (0, '{"pools":{},"services":[]}');

-- Run-time overrides, kept until lifted, whatever is declared meanwhile.
CREATE TABLE fairlead.service_override (
    service text COLLATE "C" PRIMARY KEY,
    slots int,
    paused boolean
);
