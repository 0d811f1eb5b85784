-- A view for monitoring, with the names of TaskFlow's table: see docs/monitoring.md. It contains no inputs, results or
-- error messages, and works with rights on the view alone. A later migration that changes a column of it has to drop it
-- first. The branches have constant statuses, so that a query for FAILED does not read the other finished jobs.
CREATE VIEW fairlead.tasks AS
SELECT
    j.id,
    j.user_id,
    j.feature_name,
    j.task_status AS status,
    (ARRAY['SCHEDULED', 'PENDING', 'RETRYING', 'RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED'])[j.status + 1] AS job_status,
    (ARRAY['high', 'medium', 'low'])[j.priority] AS priority,
    (SELECT count(*) FROM fairlead.attempt AS a WHERE a.seq = j.seq) AS retry_count,
    to_timestamp(j.created_at / 1e6) AS created_at,
    to_timestamp(CASE WHEN j.status = 2 THEN j.timer_at ELSE j.scheduled_at END / 1e6) AS scheduled_at,
    to_timestamp(j.queued_at / 1e6) AS queued_at,
    to_timestamp(j.started_at / 1e6) AS started_at,
    to_timestamp(j.finished_at / 1e6) AS finished_at,
    to_timestamp(greatest(
        j.created_at, j.queued_at, j.waiting_since, j.promoted_at, j.started_at, j.call_started_at, j.last_progress_at,
        j.finished_at
    ) / 1e6) AS updated_at,
    j.worker,
    j.error::json ->> 'code' AS error_code
FROM (
    SELECT
        CASE status WHEN 0 THEN 'SCHEDULED' WHEN 1 THEN 'QUEUED' WHEN 2 THEN 'PENDING' ELSE 'IN_PROGRESS' END AS task_status,
        *
    FROM fairlead.job WHERE ended IS NULL
    UNION ALL SELECT 'COMPLETED', * FROM fairlead.job WHERE ended = 4
    UNION ALL SELECT 'FAILED', * FROM fairlead.job WHERE ended = 5
    UNION ALL SELECT 'CANCELLED', * FROM fairlead.job WHERE ended = 6
) AS j;
