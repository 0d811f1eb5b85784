-- Tables of the dashboard: sessions, and the statistics of the last two hours per minute. All tables are new, so a
-- process of the previous release keeps running.

-- `hash` is the SHA-256 of the cookie, which is not stored. `key_id` is the key of the session.
CREATE TABLE dashboard_session (
    hash TEXT PRIMARY KEY,
    key_id TEXT NOT NULL,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID;

-- Each process writes its own rows, repeatedly during the minute. `about` is JSON that no query reads: see
-- store/dashboard.py.
CREATE TABLE activity (
    minute INTEGER NOT NULL,
    process TEXT NOT NULL,
    service TEXT NOT NULL,
    about TEXT NOT NULL, -- JSON
    PRIMARY KEY (minute, process, service)
) WITHOUT ROWID;
