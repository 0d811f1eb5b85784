-- The state a job returns to after the re-run of one step. Processes of the previous release neither read nor write it:
-- a re-run that they finish continues with the next step.

-- JSON: the step, error and retryable of the job before; NULL: the job continues.
ALTER TABLE job ADD COLUMN goes_back TEXT;
