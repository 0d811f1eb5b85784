-- Tables for operators: keys, tickets, the audit trail, the running processes, and rebuild requests. All tables are new,
-- so a process of the previous release keeps running.

-- `hash` is the SHA-256 of the secret, which is not stored.
CREATE TABLE api_key (
    id TEXT PRIMARY KEY,
    role TEXT NOT NULL,
    user_id TEXT,
    name TEXT NOT NULL,
    hash TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    revoked_at INTEGER
) WITHOUT ROWID;

-- Deleted when used, which makes a ticket single-use.
CREATE TABLE ticket (
    hash TEXT PRIMARY KEY,
    key_id TEXT NOT NULL,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE audit (
    id TEXT PRIMARY KEY,
    at INTEGER NOT NULL,
    who TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    details TEXT NOT NULL, -- JSON
    outcome TEXT           -- JSON; NULL while the action is under way
) WITHOUT ROWID;
-- audit of one kind of action.
CREATE INDEX audit_by_action ON audit (action, id);
-- PruneRecords.
CREATE INDEX audit_by_time ON audit (at);

-- `about` is JSON that no query reads: see store/records.py.
CREATE TABLE process (
    name TEXT PRIMARY KEY,
    seen_at INTEGER NOT NULL,
    drain_asked INTEGER NOT NULL DEFAULT 0,
    about TEXT NOT NULL -- JSON
) WITHOUT ROWID;

-- Scopes with a requested rebuild; deleted when the rebuild begins.
CREATE TABLE rebuild_request (
    scope TEXT PRIMARY KEY
) WITHOUT ROWID;
