-- The jobs of a bulk enter one lane together, are relayed together and are then forgotten by the outbox together: so they
-- share a row there, instead of a thousand that are written, indexed and deleted one by one.
--
-- A manager of the release before takes such a row for that of a job which is gone. So managers are replaced before those
-- that submit, as always; what it drops nevertheless is found missing in line, and is put there, by its next look.

-- `job_id`, or `job_ids`. Not compressed: a row lives for a moment only.
ALTER TABLE fairlead.outbox ADD COLUMN job_ids text[] COLLATE "C", ALTER COLUMN job_id DROP NOT NULL;
ALTER TABLE fairlead.outbox ALTER COLUMN job_ids SET STORAGE EXTERNAL;
