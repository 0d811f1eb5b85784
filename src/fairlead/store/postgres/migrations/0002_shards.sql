-- Shards of the dispatcher, and the identity of its server.
--
-- Processes of the previous release keep running meanwhile and afterwards, and neither write nor read these columns.
-- Each is therefore nullable or has a default, and adding it rewrites no table.

-- The dispatcher server on which the scope was last built.
ALTER TABLE fairlead.epoch ADD COLUMN server text NOT NULL DEFAULT '';

-- The lane that the transition put the job in or took it out of. Rows of the previous release have none: every shard
-- relays them, and relaying a row twice is harmless.
ALTER TABLE fairlead.outbox ADD COLUMN service text COLLATE "C", ADD COLUMN band smallint;
-- outbox_of_lanes. While the Redis of one shard is away its rows pile up, and scans for other shards must not pass them.
CREATE INDEX outbox_lane ON fairlead.outbox (service, band, id);

-- The band of the call.
ALTER TABLE fairlead.hold ADD COLUMN band smallint NOT NULL DEFAULT 2;
UPDATE fairlead.hold AS h SET band = j.priority FROM fairlead.job AS j WHERE j.id = h.job_id;
