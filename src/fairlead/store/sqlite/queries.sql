-- The reads. Each answers with one row and one column of JSON, whatever the number of jobs: see rows.py.
-- `status < 4` and its like are spelled out because SQLite takes a partial index only where its condition is repeated.

-- name: get
-- A job with everything kept beside it.
SELECT json_array(
    {job_row},
    (SELECT input FROM job_input WHERE seq = j.seq),
    (SELECT metadata FROM job_note WHERE seq = j.seq),
    (SELECT json_group_array(json_array(step, service, round, data, metrics, finished_at, lease))
        FROM (SELECT * FROM step_result WHERE seq = j.seq ORDER BY step, round)),
    (SELECT json_group_array(json_array(
            step, service, round, attempt, json(error), started_at, ended_at, worker, region))
        FROM (SELECT * FROM attempt WHERE seq = j.seq ORDER BY run))
) FROM job AS j WHERE j.id = ?

-- name: get_jobs
-- ?1: JSON array of ids.
SELECT '[' || coalesce(group_concat({job_row}, ','), '') || ']'
FROM json_each(?) AS wanted CROSS JOIN job AS j ON j.id = wanted.value

-- name: list_jobs
-- Newest first. {where} is built by reads.py of the filters given.
SELECT '[' || coalesce(group_concat(row, ','), '') || ']'
FROM (SELECT {job_row} AS row FROM job AS j WHERE {where} ORDER BY j.seq DESC LIMIT ?)

-- name: count
SELECT count(*) FROM job AS j WHERE {where}

-- name: outbox
-- ?1: this process, ?2: older than. The outbox is small and scanned whole: ids are not in the order of commits.
SELECT '[' || coalesce(group_concat(line, ','), '') || ']' FROM (
    SELECT '[' || o.id || ',' || json_quote(o.job_id) || ',' || coalesce(CASE WHEN j.seq IS NOT NULL THEN {job_row} END, 'null') || ']' AS line
    FROM outbox AS o LEFT JOIN job AS j ON j.id = o.job_id
    WHERE o.origin <> ? OR o.written_at < ? ORDER BY o.id LIMIT ?
)

-- name: timers
-- Jobs whose timer has rung, earliest first.
SELECT '[' || coalesce(group_concat(row, ','), '') || ']'
FROM (SELECT {job_row} AS row FROM job AS j WHERE j.timer_at <= ? ORDER BY j.timer_at LIMIT ?)

-- name: next_timer
SELECT min(timer_at) FROM job WHERE timer_at IS NOT NULL

-- name: promotable
-- ?1: low ones queued up to here, ?2: medium ones.
SELECT '[' || coalesce(group_concat(row, ','), '') || ']' FROM (
    SELECT {job_row} AS row FROM job AS j WHERE j.seq IN (
        SELECT seq FROM job WHERE status < 4 AND status = 1 AND priority = 3 AND queued_at <= ?
        UNION ALL
        SELECT seq FROM job WHERE status < 4 AND status = 1 AND priority = 2 AND queued_at <= ?
        LIMIT ?
    )
)

-- name: next_promotion
-- When the longest waiting low and medium job were queued.
SELECT json_array(
    (SELECT min(queued_at) FROM job WHERE status < 4 AND status = 1 AND priority = 3),
    (SELECT min(queued_at) FROM job WHERE status < 4 AND status = 1 AND priority = 2)
)

-- name: waiting
-- The numbers of all PENDING jobs; `waiting_jobs` then reads them in portions.
SELECT json_group_array(seq) FROM job WHERE status < 4 AND status = 1

-- name: waiting_jobs
-- ?1: JSON array of numbers. Those that left the line meanwhile are left out.
SELECT '[' || coalesce(group_concat({job_row}, ','), '') || ']'
FROM json_each(?) AS wanted CROSS JOIN job AS j ON j.seq = wanted.value WHERE j.status = 1

-- name: running
SELECT '[' || coalesce(group_concat({job_row}, ','), '') || ']' FROM job AS j WHERE j.status < 4 AND j.status = 3

-- name: holds
SELECT json_group_array(json_array(id, job_id, service, region, until)) FROM hold

-- name: rules
SELECT {rules}

-- name: epochs
SELECT json_group_object(scope, number) FROM epoch

-- name: answer
-- What the last commit left behind, see apply.sql.
-- Its values are JSON already, and are spliced as text.
SELECT '[' || coalesce(group_concat('["' || kind || '",' || coalesce(value, 'null') || ']', ','), '') || ']' FROM temp.answer
