-- The usage ledger (docs/adr/0028): one row per call, written by the commit that ends the call, and totals by hour and
-- day. All tables are new: a process of the previous release keeps running, and writes no rows.

-- Times and durations are in µs, prices in billionths of the currency. `id` is never used twice, because the watermark
-- of the totals refers to it.
CREATE TABLE usage (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    ended_at INTEGER NOT NULL,
    job_id TEXT NOT NULL,
    run INTEGER NOT NULL,
    step INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    user_id TEXT NOT NULL,
    feature_name TEXT NOT NULL,
    service TEXT NOT NULL,
    region TEXT,
    outcome INTEGER NOT NULL,
    waited INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    plan TEXT,
    model TEXT,
    tokens_in INTEGER,
    tokens_out INTEGER,
    tokens_cached INTEGER,
    units REAL,
    ignored INTEGER,
    price INTEGER
);

-- `span` is 3600 or 86400 seconds, `bucket` the number of the hour or day since 1970. Missing values are ''.
CREATE TABLE usage_total (
    span INTEGER NOT NULL,
    bucket INTEGER NOT NULL,
    user_id TEXT NOT NULL,
    service TEXT NOT NULL,
    feature_name TEXT NOT NULL,
    model TEXT NOT NULL,
    region TEXT NOT NULL,
    plan TEXT NOT NULL,
    outcome INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    waited INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    tokens_in INTEGER NOT NULL,
    tokens_out INTEGER NOT NULL,
    tokens_cached INTEGER NOT NULL,
    units REAL NOT NULL,
    ignored INTEGER NOT NULL,
    reported INTEGER NOT NULL,
    price INTEGER NOT NULL,
    PRIMARY KEY (span, bucket, user_id, service, feature_name, model, region, plan, outcome)
) WITHOUT ROWID;
CREATE INDEX usage_total_of_user ON usage_total (user_id, span, bucket);

-- The first row of `usage` that is not in the totals yet.
CREATE TABLE usage_state (next_id INTEGER NOT NULL);
INSERT INTO usage_state VALUES (0);
