-- What the dashboard keeps: who is signed in, and what was done in the last two hours, minute by minute. All of it is in
-- tables of its own, so a process of the release before goes on with the file as it knows it.

-- `hash` is the SHA-256 of the cookie; the cookie itself is nowhere. `key_id` is the key that it stands for.
CREATE TABLE dashboard_session (
    hash TEXT PRIMARY KEY,
    key_id TEXT NOT NULL,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID;

-- Each process writes its own rows, and again while their minute lasts. `about` is read by nobody in SQL: see
-- store/board.py.
CREATE TABLE activity (
    minute INTEGER NOT NULL,
    process TEXT NOT NULL,
    service TEXT NOT NULL,
    about TEXT NOT NULL, -- JSON
    PRIMARY KEY (minute, process, service)
) WITHOUT ROWID;
