-- Automatic limits. Processes of the previous release do not know this table and use the lowest limit, which is the
-- declared one.

CREATE TABLE fairlead.adaptive_limit (
    service text COLLATE "C" PRIMARY KEY,
    slots int NOT NULL,
    best double precision,
    history text NOT NULL
);
