-- Tables for operators: keys, tickets, the audit trail, the running processes, and rebuild requests. Processes of the
-- previous release keep running: all tables are new, except one column that has a default.

-- A rebuild of this scope was requested. The next rebuild clears it.
ALTER TABLE fairlead.epoch ADD COLUMN rebuild_asked boolean NOT NULL DEFAULT false;

-- `hash` is the SHA-256 of the secret, which is not stored.
CREATE TABLE fairlead.api_key (
    id text COLLATE "C" PRIMARY KEY,
    role text NOT NULL,
    user_id text,
    name text NOT NULL,
    hash text COLLATE "C" NOT NULL,
    created_at bigint NOT NULL,
    revoked_at bigint
);

-- Deleted when used, which makes a ticket single-use.
CREATE TABLE fairlead.ticket (
    hash text COLLATE "C" PRIMARY KEY,
    key_id text COLLATE "C" NOT NULL,
    expires_at bigint NOT NULL
);

CREATE TABLE fairlead.audit (
    id text COLLATE "C" PRIMARY KEY,
    at bigint NOT NULL,
    who text NOT NULL,
    action text COLLATE "C" NOT NULL,
    target text NOT NULL,
    details text NOT NULL, -- JSON
    outcome text           -- JSON; NULL while the action is under way
);
-- audit of one kind of action.
CREATE INDEX audit_by_action ON fairlead.audit (action, id);
-- PruneRecords.
CREATE INDEX audit_by_time ON fairlead.audit (at);

-- `about` is JSON that no query reads: see store/records.py. Each row is rewritten every two seconds; with free space
-- on its page that touches no index.
CREATE TABLE fairlead.process (
    name text COLLATE "C" PRIMARY KEY,
    seen_at bigint NOT NULL,
    drain_asked boolean NOT NULL DEFAULT false,
    about text NOT NULL -- JSON
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
