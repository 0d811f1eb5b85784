-- The reads. Each is one statement, so it sees one snapshot, and no transaction stays open between two reads.
--
-- Reads neither lock rows nor skip locked ones. Jobs that are due are selected by the commit that moves them, with
-- SKIP LOCKED (`due` and `promotable` in apply.sql, docs/adr/0007). `outbox` needs no locks: if two processes relay
-- the same row, the second relay changes nothing.

-- name: get
-- A job with its input, results and attempts.
SELECT {record_columns} FROM fairlead.job AS j WHERE j.id = $1

-- name: get_records
-- $1: ids. Without attempts, whose tracebacks may be larger than the results.
SELECT {result_columns}, NULL, j.result_about, j.result_data, j.result_metrics
FROM fairlead.job AS j WHERE j.id = ANY ($1::text[])

-- name: get_jobs
-- $1: ids.
SELECT {job_columns} FROM fairlead.job AS j WHERE j.id = ANY ($1::text[])

-- name: list_jobs
-- Newest first. reads.py builds {where} from the filters.
SELECT {job_columns} FROM fairlead.job AS j WHERE {where} ORDER BY j.seq DESC LIMIT {limit}

-- name: seq_after
-- The seq of the job that comes after so many newer ones. reads.py builds {where} from the filters.
SELECT j.seq FROM fairlead.job AS j WHERE {where} ORDER BY j.seq DESC LIMIT 1 OFFSET {skip}

-- name: count
SELECT count(*) FROM fairlead.job AS j WHERE {where}

-- name: users_with_prefix
-- $1: prefix, $2: limit. Steps from one user to the next in the index `job_by_user`.
WITH RECURSIVE found (user_id) AS (
    (SELECT user_id FROM fairlead.job WHERE user_id >= $1::text ORDER BY user_id LIMIT 1)
    UNION ALL
    SELECT (SELECT j.user_id FROM fairlead.job AS j WHERE j.user_id > f.user_id ORDER BY j.user_id LIMIT 1)
    FROM found AS f WHERE starts_with(f.user_id, $1::text)
)
SELECT user_id FROM found WHERE starts_with(user_id, $1::text) LIMIT $2::bigint

-- name: get_batch
SELECT {batch_row} FROM fairlead.job_batch AS b WHERE b.id = $1

-- name: list_batches
-- $1: before, $2: limit, optionally $3: user. Newest first.
SELECT {batch_row} FROM fairlead.job_batch AS b
WHERE ($1::text IS NULL OR b.id < $1) AND {whose} ORDER BY b.id DESC LIMIT $2::bigint

-- name: batch_owner
SELECT user_id FROM fairlead.job_batch WHERE id = $1

-- name: batch_of_key
SELECT id, body_hash FROM fairlead.job_batch WHERE user_id = $1 AND idempotency_key = $2

-- name: batch_items
-- $1: batch, $2: after, $3: limit. Item numbers have no gaps, so a page is a range of numbers. The range limits the
-- rows that are read even if the planner has no statistics yet.
SELECT i.item, i.custom_id, i.job_id, {job_columns}
FROM fairlead.batch_item AS i LEFT JOIN fairlead.job AS j ON j.id = i.job_id
WHERE i.batch_id = $1 AND i.item > $2::int AND i.item <= $2::int + $3::int ORDER BY i.item

-- name: batch_items_of_status
-- $4: statuses. Goes from item to item until the page is full. OFFSET 0 keeps the planner from joining all items first.
SELECT i.item, i.custom_id, i.job_id, {job_columns}
FROM (
    SELECT item, custom_id, job_id FROM fairlead.batch_item WHERE batch_id = $1 AND item > $2::int ORDER BY item OFFSET 0
) AS i CROSS JOIN LATERAL (
    SELECT * FROM fairlead.job WHERE id = i.job_id AND status = ANY ($4::int[]) OFFSET 0
) AS j
ORDER BY i.item LIMIT $3::bigint

-- name: removed_items
-- Like `batch_items_of_status`, for items whose job is gone.
SELECT i.item, i.custom_id, i.job_id, {job_columns}
FROM (
    SELECT item, custom_id, job_id FROM fairlead.batch_item WHERE batch_id = $1 AND item > $2::int ORDER BY item OFFSET 0
) AS i LEFT JOIN LATERAL (SELECT * FROM fairlead.job WHERE id = i.job_id OFFSET 0) AS j ON true
WHERE j.id IS NULL ORDER BY i.item LIMIT $3::bigint

-- name: batch_item
-- $1: batch, $2: custom_id, $3: the number, if the name is one.
SELECT i.item, i.custom_id, i.job_id, {job_columns}
FROM fairlead.batch_item AS i LEFT JOIN fairlead.job AS j ON j.id = i.job_id
WHERE i.batch_id = $1 AND (i.custom_id = $2 OR i.item = $3::int)
ORDER BY (i.custom_id = $2) IS NOT TRUE LIMIT 1

-- name: batch_of_job
SELECT b.id, b.name, i.item, i.custom_id
FROM fairlead.batch_item AS i JOIN fairlead.job_batch AS b ON b.id = i.batch_id WHERE i.job_id = $1 LIMIT 1

-- name: ended_batches
-- Looks for an open item in each batch, from the last item backwards, because the last items mostly end last. Goes from
-- item to item, like `batch_items_of_status`.
SELECT b.id FROM fairlead.job_batch AS b WHERE b.finished_at IS NULL AND (
    SELECT j.open FROM (
        SELECT job_id FROM fairlead.batch_item WHERE batch_id = b.id ORDER BY item DESC OFFSET 0
    ) AS i CROSS JOIN LATERAL (
        SELECT 1 AS open FROM fairlead.job WHERE id = i.job_id AND ended IS NULL OFFSET 0
    ) AS j LIMIT 1
) IS NULL ORDER BY b.id LIMIT $1::bigint

-- name: was_submitted
SELECT EXISTS (SELECT FROM fairlead.idempotency WHERE user_id = $1 AND key = $2)

-- name: newest_submit
-- $1: user, $2: the prefix of its idempotency keys, $3: the first text after all of them.
SELECT key, job_id, body_hash FROM fairlead.idempotency
WHERE user_id = $1 AND key >= $2 AND key < $3 ORDER BY key DESC LIMIT 1

-- name: front_readers
-- $1: limit. Reads all open jobs, but only after a process is gone.
SELECT j.id, i.body_hash FROM fairlead.job AS j
JOIN fairlead.idempotency AS i ON i.user_id = j.user_id AND i.key = j.idempotency_key
WHERE j.ended IS NULL AND j.idempotency_key >= 'openai:' AND j.idempotency_key < 'openai;' AND i.body_hash LIKE '%@%'
LIMIT $1::bigint

-- name: ended_fronts
-- $1: status, $2, $3: the last job of the previous page, $4: ended before, $5: the number of jobs to examine. A job that is
-- erased has no idempotency key.
WITH examined AS MATERIALIZED (
    SELECT finished_at, seq, id, idempotency_key FROM fairlead.job
    WHERE ended = $1::smallint AND finished_at >= $2::bigint AND (finished_at, seq) > ($2::bigint, $3::bigint)
        AND finished_at < $4::bigint
    ORDER BY finished_at, seq LIMIT $5::bigint
)
SELECT
    ARRAY(SELECT id FROM examined WHERE idempotency_key >= 'openai:' AND idempotency_key < 'openai;'),
    (SELECT count(*) FROM examined),
    (SELECT ARRAY[finished_at, seq] FROM examined ORDER BY finished_at DESC, seq DESC LIMIT 1)

-- name: outbox
-- $1: origin, $2: older than, $3: limit. The outbox is small and scanned whole: ids are not in commit order.
WITH found AS (
    SELECT id, job_id, job_ids FROM fairlead.outbox WHERE origin <> $1 OR written_at < $2::bigint
    ORDER BY id LIMIT $3::bigint
), {outbox_jobs}

-- name: outbox_of_lanes
-- Like `outbox`; $4: services, $5: bands, $6: all except these. Skips through the index from lane to lane and reads the
-- rows of the selected lanes only, so that the cost does not depend on the rows of other shards. Rows of the previous
-- release have no lane and are returned to every shard.
WITH RECURSIVE present AS (
    (SELECT service, band FROM fairlead.outbox ORDER BY service, band LIMIT 1)
    UNION ALL
    SELECT following.* FROM present AS p CROSS JOIN LATERAL (
        SELECT service, band FROM fairlead.outbox WHERE (service, band) > (p.service, p.band)
        ORDER BY service, band LIMIT 1
    ) AS following
), asked AS (
    SELECT service, band FROM present
    WHERE service IS NOT NULL AND ((service, band) IN (SELECT * FROM unnest($4::text[], $5::smallint[]))) <> $6::boolean
), found AS (
    SELECT lane.* FROM asked AS a CROSS JOIN LATERAL (
        SELECT id, job_id, job_ids FROM fairlead.outbox
        WHERE service = a.service AND band = a.band AND (origin <> $1 OR written_at < $2::bigint)
        ORDER BY id LIMIT $3::bigint
    ) AS lane
    UNION ALL (
        SELECT id, job_id, job_ids FROM fairlead.outbox
        WHERE service IS NULL AND (origin <> $1 OR written_at < $2::bigint)
        ORDER BY id LIMIT $3::bigint
    )
    ORDER BY id LIMIT $3::bigint
), {outbox_jobs}

-- name: next_timer
SELECT min(timer_at) FROM fairlead.job WHERE timer_at IS NOT NULL

-- name: oldest_waiting
SELECT
    (SELECT queued_at FROM fairlead.job WHERE ended IS NULL AND priority = 1 AND queued_at IS NOT NULL AND status = 1
        ORDER BY queued_at LIMIT 1),
    (SELECT queued_at FROM fairlead.job WHERE ended IS NULL AND priority = 2 AND queued_at IS NOT NULL AND status = 1
        ORDER BY queued_at LIMIT 1),
    (SELECT queued_at FROM fairlead.job WHERE ended IS NULL AND priority = 3 AND queued_at IS NOT NULL AND status = 1
        ORDER BY queued_at LIMIT 1)

-- name: next_promotion
-- When the longest-waiting low and medium jobs were queued.
SELECT
    (SELECT queued_at FROM fairlead.job WHERE ended IS NULL AND priority = 3 AND queued_at IS NOT NULL AND status = 1
        ORDER BY queued_at LIMIT 1),
    (SELECT queued_at FROM fairlead.job WHERE ended IS NULL AND priority = 2 AND queued_at IS NOT NULL AND status = 1
        ORDER BY queued_at LIMIT 1)

-- name: of_lanes
-- Replaces {lanes}, unless all lanes are read.
(({service}, j.priority) IN (SELECT * FROM unnest({services}::text[], {bands}::smallint[]))) <> {others}::boolean

-- name: waiting
-- The seqs of all PENDING jobs; `waiting_jobs` then reads the jobs in portions.
SELECT coalesce(array_agg(j.seq), '{}') FROM fairlead.job AS j WHERE j.ended IS NULL AND j.status = 1 AND {lanes}

-- name: count_waiting
SELECT count(*) FROM fairlead.job AS j WHERE j.ended IS NULL AND j.status = 1 AND {lanes}

-- name: count_waiting_by_service
SELECT {service}, count(*) FROM fairlead.job AS j WHERE j.ended IS NULL AND j.status = 1 AND {lanes} GROUP BY 1

-- name: waiting_jobs
-- $1: seqs. Jobs that left the queue or the lanes meanwhile are omitted.
SELECT {job_columns} FROM fairlead.job AS j
WHERE j.seq = ANY ($1::text::bigint[]) AND j.status = 1 AND {lanes} ORDER BY j.seq

-- name: running
SELECT {job_columns} FROM fairlead.job AS j WHERE j.ended IS NULL AND j.status = 3 AND {lanes}

-- name: turn_owners
-- The processes that own open turns which are not set aside. Skips through the index of turns. Passes over turns that are
-- set aside, which are few and stay for `turns.grace` only.
WITH RECURSIVE owner AS (
    SELECT (SELECT min(turn) FROM fairlead.job WHERE turn IS NOT NULL AND ended IS NULL AND status > 0) AS name
    UNION ALL
    SELECT (SELECT min(turn) FROM fairlead.job
            WHERE turn IS NOT NULL AND ended IS NULL AND status > 0 AND turn > owner.name)
    FROM owner WHERE owner.name IS NOT NULL
)
SELECT name FROM owner WHERE name IS NOT NULL

-- name: turns_of
-- $1: the process, $2: limit. Its open turns which are not set aside, oldest first.
SELECT {job_columns} FROM fairlead.job AS j
WHERE j.turn = $1 AND j.ended IS NULL AND j.status > 0 ORDER BY j.seq LIMIT $2::bigint

-- name: holds
SELECT job_id, service, region, until, id, band FROM fairlead.hold

-- name: rules
{rules}

-- name: epochs
SELECT scope, number, server, rebuild_asked FROM fairlead.epoch WHERE number > 0

-- name: now
SELECT extract(epoch FROM clock_timestamp())::float8

-- name: keys
SELECT id, role, user_id, name, hash, created_at, revoked_at FROM fairlead.api_key ORDER BY created_at, id

-- name: count_keys
SELECT count(*), count(revoked_at) FROM fairlead.api_key

-- name: audit
-- Newest first. reads.py builds {where} from the filters.
SELECT id, at, who, action, target, details, outcome FROM fairlead.audit WHERE {where} ORDER BY id DESC LIMIT {limit}

-- name: processes
SELECT name, seen_at, drain_asked, about FROM fairlead.process ORDER BY name

-- name: session
-- $1: hash, $2: now.
SELECT key_id, expires_at FROM fairlead.dashboard_session WHERE hash = $1 AND expires_at > $2::bigint

-- name: activity
-- $1: the first minute.
SELECT process, minute, service, about FROM fairlead.activity WHERE minute >= $1::int

-- name: waiting_by_service
-- Per service: since when the longest-waiting PENDING job has waited, and the number of RETRYING jobs.
SELECT service, min(waiting_since) FILTER (WHERE status = 1), count(*) FILTER (WHERE status = 2) FROM (
    SELECT {service} AS service, j.waiting_since, j.status FROM fairlead.job AS j
    WHERE j.ended IS NULL AND j.status IN (1, 2)
) AS open GROUP BY service

-- name: user_loads
-- $1: limit. Weight, group and plan are those of the newest job (`rows.spec_of`), read only for the users returned.
SELECT found.user_id, waiting, running, oldest, coalesce(last.spec ->> 3, '1')::float8, last.spec ->> 9, last.spec ->> 13
FROM (
    SELECT j.user_id, count(*) FILTER (WHERE j.status < 3) AS waiting, count(*) FILTER (WHERE j.status = 3) AS running,
           min(j.waiting_since) FILTER (WHERE j.status = 1) AS oldest, max(j.seq) AS newest
    FROM fairlead.job AS j WHERE j.ended IS NULL GROUP BY j.user_id
    ORDER BY waiting DESC, running DESC, j.user_id LIMIT $1::bigint
) AS found LEFT JOIN LATERAL (
    SELECT j.spec::json AS spec FROM fairlead.job AS j WHERE j.seq = newest AND j.user_id = found.user_id
) AS last ON true
ORDER BY waiting DESC, running DESC, found.user_id

-- name: heads
-- $1: users, $2: service, $3: jobs per user and band. In the order of `domain.job.Job.rank`.
SELECT {job_columns} FROM unnest($1::text[]) AS requested (user_id) CROSS JOIN generate_series(1, 3) AS band
CROSS JOIN LATERAL (
    SELECT * FROM fairlead.job AS j
    WHERE j.user_id = requested.user_id AND j.ended IS NULL AND j.status = 1 AND j.priority = band AND {service} = $2
    ORDER BY j.attempt = 0, j.step = 0, j.seq LIMIT $3::bigint
) AS j

-- name: first_in_line
-- $1: service, $2: limit.
SELECT {job_columns} FROM fairlead.job AS j
WHERE j.ended IS NULL AND j.status = 1 AND {service} = $1 ORDER BY j.seq LIMIT $2::bigint

-- name: dead_groups
-- $1: limit. The examples are the newest and the oldest job; ids grow with time.
SELECT j.error::json ->> 'code' AS code, j.error::json ->> 'message' AS message, {service} AS service, count(*) AS n,
       min(j.finished_at), max(j.finished_at) AS last, max(j.id), min(j.id)
FROM fairlead.job AS j WHERE j.ended = 5 GROUP BY 1, 2, 3 ORDER BY n DESC, last DESC LIMIT $1::bigint

-- name: facts
-- $1: now (NULL: server time). Covers the sessions of other roles only if this role may see them.
WITH clock AS (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
), oldest_transaction AS (
    SELECT extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age,
           format('pid %s, user %s, application %s, %s: %s', pid, usename, coalesce(nullif(application_name, ''), '?'),
                  state, left(query, 100)) AS whose
    FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
      AND backend_type = 'client backend'
      AND application_name NOT LIKE 'fairlead process %' -- the dispatch lock behind a pooler: it pins nothing
    ORDER BY xact_start LIMIT 1
), oldest_xmin AS (
    SELECT age, what FROM (
        SELECT age(backend_xmin) AS age, format('the session of pid %s, user %s', pid, usename) AS what
            FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
            AND (datname = current_database() OR backend_type = 'walsender')
        UNION ALL
        SELECT age(coalesce(xmin, catalog_xmin)), format('the replication slot %s', slot_name)
            FROM pg_replication_slots WHERE coalesce(xmin, catalog_xmin) IS NOT NULL
        UNION ALL
        SELECT age(transaction), format('the prepared transaction %s', gid)
            FROM pg_prepared_xacts WHERE database = current_database()
    ) AS holders ORDER BY age DESC LIMIT 1
)
SELECT
    current_setting('server_version') AS server_version,
    clock.now / 1e6::float8 AS clock,
    pg_database_size(current_database()) AS database_bytes,
    (SELECT coalesce(sum(coalesce(cardinality(job_ids), 1)), 0)::bigint FROM fairlead.outbox) AS outbox_rows,
    coalesce((SELECT clock.now - min(written_at) FROM fairlead.outbox), 0) / 1e6::float8 AS outbox_age,
    (SELECT count(*) FROM fairlead.webhook_delivery WHERE state = 0) AS webhooks_waiting,
    (SELECT count(*) FROM fairlead.webhook_endpoint WHERE disabled_at IS NOT NULL) AS webhooks_disabled,
    coalesce((SELECT n_live_tup FROM pg_stat_user_tables WHERE relid = 'fairlead.job'::regclass), 0) AS job_rows,
    coalesce((SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'fairlead.job'::regclass), 0) AS job_dead_rows,
    coalesce((SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'fairlead.outbox'::regclass), 0)
        AS outbox_dead_rows,
    coalesce((SELECT age FROM oldest_transaction), 0) AS oldest_transaction_age,
    coalesce((SELECT whose FROM oldest_transaction), '') AS oldest_transaction,
    coalesce((SELECT age FROM oldest_xmin), 0) AS oldest_xmin_age,
    coalesce((SELECT what FROM oldest_xmin), '') AS oldest_xmin,
    current_setting('fsync') AS fsync,
    current_setting('full_page_writes') AS full_page_writes,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('autovacuum') AS autovacuum,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,
    current_setting('max_connections')::int AS max_connections
FROM clock

-- name: ping
SELECT version FROM fairlead.rules

-- name: try_to_write
-- A commit that changes nothing: it writes the same version again.
UPDATE fairlead.schema_version SET number = number

-- name: try_to_grow
-- Tests for about a megabyte of free space in the tablespace. Updating a row may need none.
BEGIN;
SET LOCAL temp_tablespaces = '';
CREATE TEMPORARY TABLE fairlead_room ON COMMIT DROP AS SELECT repeat(md5(n::text), 32) FROM generate_series(1, 1000) AS n;
ROLLBACK

-- name: schema
-- Whether the schema exists. Reads the catalogue itself, because to_regclass() may use a cache from before a migration
-- that another process has just finished.
SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = 'fairlead' AND tablename = 'schema_version'

-- name: schema_version
SELECT number FROM fairlead.schema_version

-- name: get_files
SELECT {file_columns} FROM fairlead.file AS f WHERE f.id = ANY ($1::text[])

-- name: list_files
-- $1: user, $2: purpose, $3: before, each may be NULL, $4: limit. Newest first.
SELECT {file_columns} FROM fairlead.file AS f
WHERE ($1::text IS NULL OR f.user_id = $1) AND f.job_id IS NULL AND f.state = 1
AND ($2::text IS NULL OR f.purpose = $2) AND ($3::text IS NULL OR f.id < $3) ORDER BY f.id DESC LIMIT $4::bigint

-- name: oldest_files
-- Like `list_files`.
SELECT {file_columns} FROM fairlead.file AS f
WHERE ($1::text IS NULL OR f.user_id = $1) AND f.job_id IS NULL AND f.state = 1
AND ($2::text IS NULL OR f.purpose = $2) AND ($3::text IS NULL OR f.id > $3) ORDER BY f.id LIMIT $4::bigint

-- name: get_file_batch
SELECT {file_batch_columns} FROM fairlead.file_batch AS b WHERE b.id = $1

-- name: file_batch_of_key
SELECT {file_batch_columns} FROM fairlead.file_batch AS b WHERE b.user_id = $1 AND b.request_key = $2

-- name: list_file_batches
-- $1: user, $2: before, each may be NULL, $3: limit. Newest first.
SELECT {file_batch_columns} FROM fairlead.file_batch AS b
WHERE ($1::text IS NULL OR b.user_id = $1) AND ($2::text IS NULL OR b.id < $2) ORDER BY b.id DESC LIMIT $3::bigint

-- name: open_file_batches
SELECT {file_batch_columns} FROM fairlead.file_batch AS b WHERE b.ended_at IS NULL ORDER BY b.id LIMIT $1::bigint

-- name: file_uses
SELECT {file_columns} FROM fairlead.file_use AS u JOIN fairlead.file AS f ON f.id = u.file_id
WHERE u.job_id = $1 ORDER BY f.id

-- name: file_parts
SELECT artifact_id, at, size FROM fairlead.file_part WHERE file_id = $1 AND size IS NOT NULL ORDER BY at

-- name: known_artifacts
SELECT id FROM fairlead.artifact WHERE id = ANY ($1::text[])

-- name: file_totals
SELECT (SELECT count(*) FROM fairlead.file), (SELECT count(*) FROM fairlead.file WHERE state = 0),
    (SELECT count(*) FROM fairlead.artifact WHERE state = 2),
    (SELECT coalesce(sum(size), 0)::bigint FROM fairlead.artifact WHERE state = 1)

-- name: uploaded_bytes
-- $1: user.
SELECT coalesce(sum(size), 0)::bigint FROM fairlead.file
WHERE user_id = $1 AND job_id IS NULL AND state = 1 AND purpose <> 'batch_output'

-- name: secret
SELECT value FROM fairlead.secret WHERE name = $1

-- name: webhook_users
SELECT DISTINCT user_id FROM fairlead.webhook_endpoint WHERE url IS NOT NULL AND disabled_at IS NULL

-- name: endpoints
-- $1: user or NULL, $2: ids or NULL.
SELECT {endpoint_columns} FROM fairlead.webhook_endpoint AS p
WHERE CASE WHEN $2::text[] IS NULL THEN p.url IS NOT NULL AND ($1::text IS NULL OR p.user_id = $1)
           ELSE p.id = ANY ($2::text[]) END
ORDER BY p.created_at, p.id

-- name: deliveries
-- $9: the last id of the previous page, $10: limit.
SELECT {delivery_columns} FROM fairlead.webhook_delivery AS d
WHERE {deliveries_where}
AND ($9::text IS NULL OR d.seq < (SELECT seq FROM fairlead.webhook_delivery WHERE id = $9))
ORDER BY d.seq DESC LIMIT $10::bigint

-- name: count_deliveries
SELECT state, count(*) FROM fairlead.webhook_delivery GROUP BY state

-- name: next_delivery
SELECT min(next_at) FROM fairlead.webhook_delivery WHERE state = 0

-- name: schedules
-- $1: user or NULL, $2: ids or NULL.
SELECT {schedule_columns} FROM fairlead.schedule AS s
WHERE ($1::text IS NULL OR s.user_id = $1) AND ($2::text[] IS NULL OR s.id = ANY ($2::text[])) ORDER BY s.id

-- name: next_schedule
SELECT (SELECT min(next_at) FROM fairlead.schedule WHERE paused_at IS NULL),
    EXISTS (SELECT FROM fairlead.schedule WHERE paused_at IS NULL AND waiting_at IS NOT NULL)

-- name: due_schedules
SELECT {schedule_columns} FROM fairlead.schedule AS s
WHERE s.paused_at IS NULL AND (s.next_at <= $1::bigint OR s.waiting_at IS NOT NULL) ORDER BY s.next_at, s.id

-- name: has_open_run
SELECT j.id FROM fairlead.schedule_run AS r JOIN fairlead.job AS j ON j.id = r.job_id
WHERE r.schedule_id = $1 AND j.status < 4 LIMIT 1

-- name: schedule_runs
-- $2: the seq of the last run of the previous page, or NULL, $3: limit.
SELECT seq, outcome, at, due_at, job_id, count, detail FROM fairlead.schedule_run
WHERE schedule_id = $1 AND ($2::bigint IS NULL OR seq < $2) ORDER BY seq DESC LIMIT $3::bigint

-- name: budget_counters
-- $1: budgets, $2: subjects. Both NULL: all counters, at most $3.
SELECT {counter_columns}, 0 FROM (
    SELECT budget, subject FROM unnest($1::text[], $2::text[]) AS g (budget, subject)
    UNION ALL
    SELECT budget, subject FROM (
        SELECT budget, subject FROM fairlead.budget_counter UNION SELECT budget, subject FROM fairlead.budget_override
        LIMIT $3::int
    ) AS every WHERE $1::text[] IS NULL
) AS k LEFT JOIN fairlead.budget_counter AS c ON c.budget = k.budget AND c.subject = k.subject

-- name: budgets_to_warn
-- $1: budgets, $2: starts of their windows, $3: amounts, $4: thresholds, $5: their numbers, $6: limit.
-- Most counters are below the smallest amount of any subject: they cost no look at the amount of their own.
WITH t AS MATERIALIZED (
    SELECT g.*, least(g.amount, (SELECT min(o.amount) FROM fairlead.budget_override AS o WHERE o.budget = g.budget))
        AS smallest
    FROM unnest($1::text[], $2::text::bigint[], $3::text::bigint[], $4::text::float8[], $5::text::int[])
        AS g (budget, window_start, amount, share, number)
)
SELECT {counter_columns}, 0 FROM (
    SELECT c.budget, c.subject FROM t JOIN fairlead.budget_counter AS c ON c.budget = t.budget
    WHERE c.window_start >= t.window_start AND c.warned < t.number AND c.used >= t.share * t.smallest
    AND c.used >= t.share * coalesce((
        SELECT o.amount FROM fairlead.budget_override AS o WHERE o.budget = c.budget AND o.subject IN (c.subject, '')
        ORDER BY o.subject DESC LIMIT 1
    ), t.amount) LIMIT $6::int
) AS k JOIN fairlead.budget_counter AS c ON c.budget = k.budget AND c.subject = k.subject

-- name: held_budgets
-- With the number of jobs that they hold.
SELECT {counter_columns}, k.held
FROM (SELECT budget, subject, count(*) AS held FROM fairlead.budget_hold GROUP BY budget, subject) AS k
LEFT JOIN fairlead.budget_counter AS c ON c.budget = k.budget AND c.subject = k.subject

-- name: holding_budgets
-- One step in the index for each budget and subject, not for each job.
WITH RECURSIVE k AS (
    (SELECT h.budget, h.subject FROM fairlead.budget_hold AS h ORDER BY h.budget, h.subject LIMIT 1)
    UNION ALL
    SELECT n.budget, n.subject FROM k CROSS JOIN LATERAL (
        SELECT h.budget, h.subject FROM fairlead.budget_hold AS h
        WHERE (h.budget, h.subject) > (k.budget, k.subject) ORDER BY h.budget, h.subject LIMIT 1
    ) AS n
)
SELECT {counter_columns}, 0
FROM k LEFT JOIN fairlead.budget_counter AS c ON c.budget = k.budget AND c.subject = k.subject
