-- A view for monitoring, with the names of TaskFlow's table: see docs/monitoring.md. It contains no inputs, results or
-- error messages. Times are text in UTC, which compares with datetime('now'). The branches have constant statuses, and
-- repeat the conditions of the indexes, so that a query for FAILED does not read the other finished jobs.
CREATE VIEW tasks AS
SELECT
    id,
    user_id,
    feature_name,
    task_status AS status,
    CASE status WHEN 0 THEN 'SCHEDULED' WHEN 1 THEN 'PENDING' WHEN 2 THEN 'RETRYING' WHEN 3 THEN 'RUNNING'
        WHEN 4 THEN 'COMPLETED' WHEN 5 THEN 'FAILED' ELSE 'CANCELLED' END AS job_status,
    CASE priority WHEN 1 THEN 'high' WHEN 2 THEN 'medium' ELSE 'low' END AS priority,
    (SELECT count(*) FROM attempt AS a WHERE a.seq = j.seq) AS retry_count,
    strftime('%Y-%m-%d %H:%M:%f', created_at / 1e6, 'unixepoch') AS created_at,
    strftime('%Y-%m-%d %H:%M:%f', CASE status WHEN 2 THEN timer_at ELSE scheduled_at END / 1e6, 'unixepoch') AS scheduled_at,
    strftime('%Y-%m-%d %H:%M:%f', queued_at / 1e6, 'unixepoch') AS queued_at,
    strftime('%Y-%m-%d %H:%M:%f', started_at / 1e6, 'unixepoch') AS started_at,
    strftime('%Y-%m-%d %H:%M:%f', finished_at / 1e6, 'unixepoch') AS finished_at,
    strftime('%Y-%m-%d %H:%M:%f', max(
        created_at, coalesce(queued_at, 0), coalesce(waiting_since, 0), coalesce(promoted_at, 0),
        coalesce(started_at, 0), coalesce(call_started_at, 0), coalesce(last_progress_at, 0), coalesce(finished_at, 0)
    ) / 1e6, 'unixepoch') AS updated_at,
    worker,
    json_extract(error, '$.code') AS error_code
FROM (
    SELECT
        CASE status WHEN 0 THEN 'SCHEDULED' WHEN 1 THEN 'QUEUED' WHEN 2 THEN 'PENDING' ELSE 'IN_PROGRESS' END AS task_status,
        *
    FROM job WHERE status < 4
    UNION ALL SELECT 'COMPLETED', * FROM job WHERE status = 4 AND status > 3
    UNION ALL SELECT 'FAILED', * FROM job WHERE status = 5 AND status > 4
    UNION ALL SELECT 'CANCELLED', * FROM job WHERE status = 6 AND status > 4
) AS j;
