-- The dispatcher may be spread over shards, and has a server whose identity counts.
--
-- Processes of the release before go on while this runs and after it: what they insert has none of these columns, and
-- they read none of them. So each is nullable or has a default, and adding it rewrites no table.

-- The dispatcher's server on which the scope was built last.
ALTER TABLE fairlead.epoch ADD COLUMN server text NOT NULL DEFAULT '';

-- The lane that the transition put the job in, or took it out of. A row without one was written by the release before:
-- every shard takes it for its own, and relaying it twice is harmless.
ALTER TABLE fairlead.outbox ADD COLUMN service text COLLATE "C", ADD COLUMN band smallint;
-- outbox_of_lanes. While one shard's Redis is away its rows pile up, and the others' scans must not pass them all.
CREATE INDEX outbox_lane ON fairlead.outbox (service, band, id);

-- The band that the call was granted in.
ALTER TABLE fairlead.hold ADD COLUMN band smallint NOT NULL DEFAULT 2;
UPDATE fairlead.hold AS h SET band = j.priority FROM fairlead.job AS j WHERE j.id = h.job_id;
