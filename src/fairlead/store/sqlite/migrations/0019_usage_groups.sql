-- The group of a call (docs/adr/0028). Rows from before have none. A primary key cannot be changed, so the totals are
-- copied.
ALTER TABLE usage ADD COLUMN group_path TEXT;

ALTER TABLE usage_total RENAME TO usage_total_before;
DROP INDEX usage_total_of_user;
CREATE TABLE usage_total (
    span INTEGER NOT NULL,
    bucket INTEGER NOT NULL,
    user_id TEXT NOT NULL,
    service TEXT NOT NULL,
    feature_name TEXT NOT NULL,
    model TEXT NOT NULL,
    region TEXT NOT NULL,
    plan TEXT NOT NULL,
    group_path TEXT NOT NULL,
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
    PRIMARY KEY (span, bucket, user_id, service, feature_name, model, region, plan, group_path, outcome)
) WITHOUT ROWID;
INSERT INTO usage_total
    SELECT span, bucket, user_id, service, feature_name, model, region, plan, '', outcome, calls, waited, slot,
           tokens_in, tokens_out, tokens_cached, units, ignored, reported, price
    FROM usage_total_before;
DROP TABLE usage_total_before;
CREATE INDEX usage_total_of_user ON usage_total (user_id, span, bucket);
