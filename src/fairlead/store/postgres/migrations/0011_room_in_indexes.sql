-- Free space for the index entries that the end of a job adds. The end changes columns of partial indexes, so it is never
-- a HOT update: every index gets an entry for the new row version, on a page that was filled when the job was inserted.
-- On a full page that means a search for dead entries and then a page split, a quarter of the cost of an end. Applies to
-- new pages only; processes of the previous release keep running.

ALTER INDEX fairlead.job_id_unique SET (fillfactor = 45);
ALTER INDEX fairlead.job_by_seq SET (fillfactor = 45);
ALTER INDEX fairlead.job_by_user SET (fillfactor = 45);
