-- Rates that operators set at run time: of a service, of each user of a service, a region, a pool, a plan or a group. The
-- rate is JSON. Those of services and users were columns of service_override, which are no longer used.
CREATE TABLE rate_override (
    kind TEXT NOT NULL, name TEXT NOT NULL, region TEXT NOT NULL, rate TEXT NOT NULL, PRIMARY KEY (kind, name, region)
) WITHOUT ROWID;
INSERT INTO rate_override SELECT 'service', service, '', rate FROM service_override WHERE rate IS NOT NULL;
INSERT INTO rate_override SELECT 'user', service, '', user_rate FROM service_override WHERE user_rate IS NOT NULL;
UPDATE service_override SET rate = NULL, user_rate = NULL;
