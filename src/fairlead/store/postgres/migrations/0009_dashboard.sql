-- What the dashboard keeps: who is signed in, and what was done in the last two hours, minute by minute. Processes of the
-- release before go on beside it: all is new.

-- `hash` is the SHA-256 of the cookie; the cookie itself is nowhere. `key_id` is the key that it stands for.
CREATE TABLE fairlead.dashboard_session (
    hash text COLLATE "C" PRIMARY KEY,
    key_id text COLLATE "C" NOT NULL,
    expires_at bigint NOT NULL
);

-- Each process writes its own rows, and again while their minute lasts: with room on the page that touches no index.
-- `about` is read by nobody in SQL: see store/board.py.
CREATE TABLE fairlead.activity (
    minute int NOT NULL,
    process text COLLATE "C" NOT NULL,
    service text COLLATE "C" NOT NULL,
    about text NOT NULL, -- JSON
    PRIMARY KEY (minute, process, service)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
