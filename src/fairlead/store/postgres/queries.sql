-- The reads. Each is one statement, so one snapshot, and no transaction is held open between two of them.
--
-- The sweeps (timers, promotable, outbox) lock nothing and skip nothing that is locked. What they find is only a
-- suggestion: the write that follows requires the run that was read, so of two managers that found the same job one is
-- refused. SKIP LOCKED would not save that work, since a lock would have to be held from the read to the write.

-- name: get
-- A job with everything kept beside it.
SELECT {job_columns}, j.input, j.metadata,
    (SELECT json_agg(json_build_array(r.step, r.service, r.round, r.data, r.metrics, r.finished_at, r.lease)
                     ORDER BY r.step, r.round)::text
        FROM fairlead.step_result AS r WHERE r.seq = j.seq),
    (SELECT json_agg(json_build_array(a.step, a.service, a.round, a.attempt, a.error::json, a.started_at, a.ended_at,
                                      a.worker, a.region) ORDER BY a.run)::text
        FROM fairlead.attempt AS a WHERE a.seq = j.seq),
    j.result_about, j.result_data, j.result_metrics
FROM fairlead.job AS j WHERE j.id = $1

-- name: get_jobs
-- $1: ids.
SELECT {job_columns} FROM fairlead.job AS j WHERE j.id = ANY ($1::text[])

-- name: list_jobs
-- Newest first. {where} is built by reads.py of the filters given.
SELECT {job_columns} FROM fairlead.job AS j WHERE {where} ORDER BY j.seq DESC LIMIT {limit}

-- name: count
SELECT count(*) FROM fairlead.job AS j WHERE {where}

-- name: outbox
-- $1: this process, $2: older than. The outbox is small and scanned whole: ids are not in the order of commits.
SELECT o.id, o.job_id, {job_columns}
FROM (
    SELECT id, job_id FROM fairlead.outbox WHERE origin <> $1 OR written_at < $2::bigint ORDER BY id LIMIT $3::bigint
) AS o LEFT JOIN fairlead.job AS j ON j.id = o.job_id
ORDER BY o.id

-- name: timers
-- Jobs whose timer has rung, earliest first.
SELECT {job_columns} FROM fairlead.job AS j WHERE j.timer_at <= $1::bigint ORDER BY j.timer_at LIMIT $2::bigint

-- name: next_timer
SELECT min(timer_at) FROM fairlead.job WHERE timer_at IS NOT NULL

-- name: promotable
-- $1: low ones queued up to here, $2: medium ones.
(SELECT {job_columns} FROM fairlead.job AS j
    WHERE j.ended IS NULL AND j.priority = 3 AND j.queued_at <= $1::bigint AND j.status = 1
    ORDER BY j.queued_at LIMIT $3::bigint)
UNION ALL
(SELECT {job_columns} FROM fairlead.job AS j
    WHERE j.ended IS NULL AND j.priority = 2 AND j.queued_at <= $2::bigint AND j.status = 1
    ORDER BY j.queued_at LIMIT $3::bigint)
LIMIT $3::bigint

-- name: next_promotion
-- When the longest waiting low and medium job were queued.
SELECT
    (SELECT queued_at FROM fairlead.job WHERE ended IS NULL AND priority = 3 AND queued_at IS NOT NULL AND status = 1
        ORDER BY queued_at LIMIT 1),
    (SELECT queued_at FROM fairlead.job WHERE ended IS NULL AND priority = 2 AND queued_at IS NOT NULL AND status = 1
        ORDER BY queued_at LIMIT 1)

-- name: waiting
-- The numbers of all PENDING jobs; `waiting_jobs` then reads them in portions.
SELECT coalesce(array_agg(seq), '{}') FROM fairlead.job WHERE ended IS NULL AND status = 1

-- name: waiting_jobs
-- $1: numbers. Those that left the line meanwhile are left out.
SELECT {job_columns} FROM fairlead.job AS j WHERE j.seq = ANY ($1::text::bigint[]) AND j.status = 1 ORDER BY j.seq

-- name: running
SELECT {job_columns} FROM fairlead.job AS j WHERE j.ended IS NULL AND j.status = 3

-- name: holds
SELECT job_id, service, region, until, id FROM fairlead.hold

-- name: rules
{rules}

-- name: epochs
SELECT scope, number FROM fairlead.epoch WHERE number > 0

-- name: ping
SELECT version FROM fairlead.rules

-- name: schema
-- Is our schema there? Asked of the catalogue itself: to_regclass() may answer from a cache that has not heard yet of a
-- migration that ended while we waited for its lock.
SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = 'fairlead' AND tablename = 'schema_version'

-- name: schema_version
SELECT number FROM fairlead.schema_version
