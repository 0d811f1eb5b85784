-- Automatic limits. Processes of the previous release do not know this table and use the lowest limit, which is the
-- declared one.

CREATE TABLE adaptive_limit (
    service TEXT PRIMARY KEY,
    slots INTEGER NOT NULL,
    best REAL,
    history TEXT NOT NULL
) WITHOUT ROWID;
