-- Limits that are found by themselves. A process of the release before does not know of this table, and goes on with the
-- lowest limit, which is what the declaration says of such a service.

CREATE TABLE adaptive_limit (
    service TEXT PRIMARY KEY,
    slots INTEGER NOT NULL,
    best REAL,
    history TEXT NOT NULL
) WITHOUT ROWID;
