-- Room for the entry that a job's end adds to each of these. An end changes what partial indexes are about, so it is never
-- a heap-only update: every index gets the new version of the row, on a page that was filled when the job came. On a full
-- page that is a search for dead entries, in vain while the row's start is a moment ago, and then a split: a quarter of
-- what an end costs. It concerns new pages only; processes of the release before go on beside it.

ALTER INDEX fairlead.job_id_unique SET (fillfactor = 45);
ALTER INDEX fairlead.job_by_seq SET (fillfactor = 45);
ALTER INDEX fairlead.job_by_user SET (fillfactor = 45);
