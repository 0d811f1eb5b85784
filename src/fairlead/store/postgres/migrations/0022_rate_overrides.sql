-- Rates that operators set at run time: of a service, of each user of a service, a region, a pool, a plan or a group. The
-- rate is JSON. Those of services and users were columns of service_override, which are no longer used.
CREATE TABLE fairlead.rate_override (
    kind text NOT NULL, name text NOT NULL, region text NOT NULL, rate text NOT NULL, PRIMARY KEY (kind, name, region)
);
INSERT INTO fairlead.rate_override SELECT 'service', service, '', rate FROM fairlead.service_override WHERE rate IS NOT NULL;
INSERT INTO fairlead.rate_override
    SELECT 'user', service, '', user_rate FROM fairlead.service_override WHERE user_rate IS NOT NULL;
UPDATE fairlead.service_override SET rate = NULL, user_rate = NULL;
