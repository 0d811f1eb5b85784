-- Where a job goes back to when one step of it, run again by itself, is done. A process of the release before neither
-- reads nor writes it: a re-run that it finishes goes on to the next step.

-- JSON: the step, error and retryable that the job had before; NULL: it goes on.
ALTER TABLE job ADD COLUMN goes_back TEXT;
