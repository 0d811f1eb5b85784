-- Tables of the dashboard: sessions, and the statistics of the last two hours per minute. Processes of the previous
-- release keep running: all tables are new.

-- `hash` is the SHA-256 of the cookie, which is not stored. `key_id` is the key of the session.
CREATE TABLE fairlead.dashboard_session (
    hash text COLLATE "C" PRIMARY KEY,
    key_id text COLLATE "C" NOT NULL,
    expires_at bigint NOT NULL
);

-- Each process writes its own rows, repeatedly during the minute; with free space on the page that touches no index.
-- `about` is JSON that no query reads: see store/dashboard.py.
CREATE TABLE fairlead.activity (
    minute int NOT NULL,
    process text COLLATE "C" NOT NULL,
    service text COLLATE "C" NOT NULL,
    about text NOT NULL, -- JSON
    PRIMARY KEY (minute, process, service)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
