-- Webhooks: receivers with their secrets, and one row for each event and receiver.

-- Without a URL, the row only keeps a secret. Without a user, it receives the events of all users.
CREATE TABLE fairlead.webhook_endpoint (
    id text COLLATE "C" PRIMARY KEY,
    user_id text COLLATE "C",
    url text,
    events text NOT NULL,    -- JSON: [event, …]
    secrets text NOT NULL,   -- JSON: [[secret, until or null], …]
    name text COLLATE "C",   -- of its section in the configuration
    created_at bigint NOT NULL,
    disabled_at bigint,
    failing_since bigint,
    disabled_reason text
);

-- States: 0 waiting, 1 delivered, 2 failed. `run` orders the events of a job.
CREATE TABLE fairlead.webhook_delivery (
    seq bigint GENERATED ALWAYS AS IDENTITY,
    id text COLLATE "C" PRIMARY KEY,
    event text COLLATE "C" NOT NULL,
    receiver text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    created_at bigint NOT NULL,
    job_id text COLLATE "C",
    run int,
    batch_id text COLLATE "C",
    endpoint_id text COLLATE "C",
    state smallint NOT NULL DEFAULT 0,
    attempts int NOT NULL DEFAULT 0,
    next_at bigint,
    about text NOT NULL,     -- JSON: what was true at the event
    log text,                -- JSON: the attempts
    body text
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000);
-- The list of all deliveries, newest first.
CREATE UNIQUE INDEX webhook_delivery_seq ON fairlead.webhook_delivery (seq);
-- Claims: the receivers, and the due deliveries of each.
CREATE INDEX webhook_delivery_due ON fairlead.webhook_delivery (receiver, next_at) WHERE state = 0;
-- The time of the next one.
CREATE INDEX webhook_delivery_next ON fairlead.webhook_delivery (next_at) WHERE state = 0;
-- Earlier deliveries of a job, and the list of a job's deliveries.
CREATE INDEX webhook_delivery_job ON fairlead.webhook_delivery (job_id, run) WHERE job_id IS NOT NULL;
CREATE INDEX webhook_delivery_user ON fairlead.webhook_delivery (user_id, seq);
CREATE INDEX webhook_delivery_endpoint ON fairlead.webhook_delivery (endpoint_id, seq) WHERE endpoint_id IS NOT NULL;
-- Prune.
CREATE INDEX webhook_delivery_ended ON fairlead.webhook_delivery (created_at) WHERE state > 0;

ALTER TABLE fairlead.job_batch ADD COLUMN webhook text;  -- JSON
