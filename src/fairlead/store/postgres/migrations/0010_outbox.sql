-- The jobs of a bulk submission that enter one lane share an outbox row, instead of a thousand rows that are written,
-- indexed and deleted one by one.
--
-- A manager of the previous release reads such a row as that of a deleted job. Upgrade managers before the processes that
-- submit, as always; jobs that it drops nevertheless are queued by its next reconciliation.

-- Either `job_id` or `job_ids` is set. Not compressed, because a row lives for a moment only.
ALTER TABLE fairlead.outbox ADD COLUMN job_ids text[] COLLATE "C", ALTER COLUMN job_id DROP NOT NULL;
ALTER TABLE fairlead.outbox ALTER COLUMN job_ids SET STORAGE EXTERNAL;
