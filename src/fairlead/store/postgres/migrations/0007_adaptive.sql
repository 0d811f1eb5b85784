-- Limits that are found by themselves. A process of the release before does not know of this table, and goes on with the
-- lowest limit, which is what the declaration says of such a service.

CREATE TABLE fairlead.adaptive_limit (
    service text COLLATE "C" PRIMARY KEY,
    slots int NOT NULL,
    best double precision,
    history text NOT NULL
);
