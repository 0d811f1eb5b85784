-- Rates that operators set at run time, as JSON. A process of the previous release ignores them.
ALTER TABLE fairlead.service_override ADD COLUMN rate text;
ALTER TABLE fairlead.service_override ADD COLUMN user_rate text;
