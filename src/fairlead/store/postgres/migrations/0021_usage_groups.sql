-- The group of a call (docs/adr/0028). Rows from before have none.
ALTER TABLE fairlead.usage ADD COLUMN group_path text COLLATE "C";

ALTER TABLE fairlead.usage_total ADD COLUMN group_path text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE fairlead.usage_total DROP CONSTRAINT usage_total_pkey;
ALTER TABLE fairlead.usage_total
    ADD PRIMARY KEY (span, bucket, user_id, service, feature_name, model, region, plan, group_path, outcome);
