-- What operators need beside the jobs: keys, tickets, the audit trail, the processes that run, and requests for a
-- rebuild. Processes of the release before go on beside it: all is new, but for one column that they neither read nor
-- write and that has a default.

-- Someone wants this scope built anew. The next rebuild takes it back.
ALTER TABLE fairlead.epoch ADD COLUMN rebuild_asked boolean NOT NULL DEFAULT false;

-- `hash` is the SHA-256 of the secret; the secret itself is nowhere.
CREATE TABLE fairlead.api_key (
    id text COLLATE "C" PRIMARY KEY,
    role text NOT NULL,
    user_id text,
    name text NOT NULL,
    hash text COLLATE "C" NOT NULL,
    created_at bigint NOT NULL,
    revoked_at bigint
);

-- Deleted when used: that is what makes it single-use.
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

-- `about` is what the process says of itself, and is read by nobody in SQL: see store/operators.py. Each row is
-- rewritten every two seconds: with room on its page that touches no index.
CREATE TABLE fairlead.process (
    name text COLLATE "C" PRIMARY KEY,
    seen_at bigint NOT NULL,
    drain_asked boolean NOT NULL DEFAULT false,
    about text NOT NULL -- JSON
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
