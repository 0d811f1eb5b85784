-- Rates that operators set at run time, as JSON. A process of the previous release ignores them.
ALTER TABLE service_override ADD COLUMN rate TEXT;
ALTER TABLE service_override ADD COLUMN user_rate TEXT;
