-- The reads. Each returns one row with one JSON column, whatever the number of jobs: see rows.py.
-- Conditions such as `status < 4` are repeated, because SQLite uses a partial index only if the query contains the
-- condition of that index.

-- name: get
-- A job with its input, results and attempts.
SELECT {record_row} FROM job AS j WHERE j.id = ?

-- name: get_records
-- ?1: JSON array of ids. Without attempts, whose tracebacks may be larger than the results.
SELECT '[' || coalesce(group_concat(json_array({result_values}, json('[]')), ','), '') || ']'
FROM json_each(?) AS requested CROSS JOIN job AS j ON j.id = requested.value

-- name: get_jobs
-- ?1: JSON array of ids.
SELECT '[' || coalesce(group_concat({job_row}, ','), '') || ']'
FROM json_each(?) AS requested CROSS JOIN job AS j ON j.id = requested.value

-- name: list_jobs
-- Newest first. reads.py builds {where} from the filters.
SELECT '[' || coalesce(group_concat(row, ','), '') || ']'
FROM (SELECT {job_row} AS row FROM job AS j WHERE {where} ORDER BY j.seq DESC LIMIT ?)

-- name: seq_after
-- The seq of the job that comes after so many newer ones. reads.py builds {where} from the filters.
SELECT j.seq FROM job AS j WHERE {where} ORDER BY j.seq DESC LIMIT 1 OFFSET ?

-- name: count
SELECT count(*) FROM job AS j WHERE {where}

-- name: users_with_prefix
-- ?: prefix (three times), limit, prefix (twice), limit. Steps from one user to the next in the index `job_by_user`.
SELECT json_group_array(user_id) FROM (
    WITH RECURSIVE found (user_id) AS (
        SELECT * FROM (SELECT user_id FROM job WHERE user_id >= ? ORDER BY user_id LIMIT 1)
        UNION ALL
        SELECT (SELECT j.user_id FROM job AS j WHERE j.user_id > f.user_id ORDER BY j.user_id LIMIT 1)
        FROM found AS f WHERE substr(f.user_id, 1, length(?)) = ?
        LIMIT ?
    )
    SELECT user_id FROM found WHERE substr(user_id, 1, length(?)) = ? ORDER BY user_id LIMIT ?
)

-- name: get_batch
SELECT {batch_row} FROM job_batch AS b WHERE b.id = ?

-- name: list_batches
-- Newest first. {whose} restricts the user and the id.
SELECT '[' || coalesce(group_concat(row, ','), '') || ']'
FROM (SELECT {batch_row} AS row FROM job_batch AS b WHERE {whose} ORDER BY b.id DESC LIMIT ?)

-- name: batch_owner
SELECT user_id FROM job_batch WHERE id = ?

-- name: batch_of_key
SELECT json_array(id, body_hash) FROM job_batch WHERE user_id = ? AND idempotency_key = ?

-- name: batch_items
-- ?: batch, after, JSON array of statuses (none for all) twice, limit.
SELECT '[' || coalesce(group_concat(row, ','), '') || ']' FROM (
    SELECT {item_row} AS row FROM batch_item AS i LEFT JOIN job AS j ON j.id = i.job_id
    WHERE i.batch_id = ? AND i.item > ? AND (? = '[]' OR j.status IN (SELECT value FROM json_each(?)))
    ORDER BY i.item LIMIT ?
)

-- name: removed_items
-- ?: batch, after, limit. Items whose job is gone.
SELECT '[' || coalesce(group_concat(row, ','), '') || ']' FROM (
    SELECT {item_row} AS row FROM batch_item AS i LEFT JOIN job AS j ON j.id = i.job_id
    WHERE i.batch_id = ? AND i.item > ? AND j.id IS NULL ORDER BY i.item LIMIT ?
)

-- name: batch_item
-- ?: batch, custom_id, the number if the name is one, the name again. Numbered parameters (?2) are not used, because
-- Python 3.12.0 to 3.12.3 treat them as named ones and warn.
SELECT {item_row} FROM batch_item AS i LEFT JOIN job AS j ON j.id = i.job_id
WHERE i.batch_id = ? AND (i.custom_id = ? OR i.item = ?) ORDER BY i.custom_id IS NOT ? LIMIT 1

-- name: batch_of_job
SELECT json_array(b.id, b.name, i.item, i.custom_id)
FROM batch_item AS i JOIN job_batch AS b ON b.id = i.batch_id WHERE i.job_id = ? LIMIT 1

-- name: ended_batches
-- Looks for an open item in each batch, from the last item backwards, because the last items mostly end last.
SELECT json_group_array(id) FROM (
    SELECT b.id FROM job_batch AS b WHERE b.finished_at IS NULL AND (
        SELECT 1 FROM batch_item AS i CROSS JOIN job AS j ON j.id = i.job_id
        WHERE i.batch_id = b.id AND j.status < 4 ORDER BY i.item DESC LIMIT 1
    ) IS NULL ORDER BY b.id LIMIT ?
)

-- name: was_submitted
SELECT EXISTS (SELECT 1 FROM idempotency WHERE user_id = ? AND key = ?)

-- name: newest_submit
-- ?: user, the prefix of its idempotency keys, the first text after all of them.
SELECT json_array(key, job_id, body_hash) FROM idempotency
WHERE user_id = ? AND key >= ? AND key < ? ORDER BY key DESC LIMIT 1

-- name: front_readers
-- Reads all open jobs, but only after a process is gone.
SELECT json_group_array(json_array(id, body_hash)) FROM (
    SELECT j.id, i.body_hash FROM job AS j
    CROSS JOIN job_note AS n ON n.seq = j.seq
    CROSS JOIN idempotency AS i ON i.user_id = j.user_id AND i.key = n.idempotency_key
    WHERE j.status < 4 AND n.idempotency_key >= 'openai:' AND n.idempotency_key < 'openai;' AND i.body_hash LIKE '%@%'
    LIMIT ?
)

-- name: ended_fronts
-- ?1: status, ?2, ?3: the last job of the previous page, ?4: ended before, ?5: the number of jobs to examine. A job that
-- is erased has no idempotency key.
WITH examined AS (
    SELECT finished_at, seq, id FROM job
    WHERE status = ?1 AND status > 3 AND (finished_at, seq) > (?2, ?3) AND finished_at < ?4
    ORDER BY finished_at, seq LIMIT ?5
)
SELECT json_array(
    json((
        SELECT json_group_array(e.id) FROM examined AS e CROSS JOIN job_note AS n ON n.seq = e.seq
        WHERE n.idempotency_key >= 'openai:' AND n.idempotency_key < 'openai;'
    )),
    (SELECT count(*) FROM examined),
    json((SELECT json_array(finished_at, seq) FROM examined ORDER BY finished_at DESC, seq DESC LIMIT 1))
)

-- name: outbox
-- ?1: origin, ?2: older than, then the lanes. The outbox is small and scanned whole: ids are not in commit order. A row
-- belongs to the current lane of its job; rows of deleted jobs belong to every lane.
SELECT '[' || coalesce(group_concat(line, ','), '') || ']' FROM (
    SELECT '[' || o.id || ',' || json_quote(o.job_id) || ',' || coalesce(CASE WHEN j.seq IS NOT NULL THEN {job_row} END, 'null') || ']' AS line
    FROM outbox AS o LEFT JOIN job AS j ON j.id = o.job_id
    WHERE (o.origin <> ? OR o.written_at < ?) AND (j.seq IS NULL OR {lanes}) ORDER BY o.id LIMIT ?
)

-- name: due
-- Jobs whose timer has fired, earliest first, except those in the JSON array ?2. Run by the writer within the transaction
-- that moves them.
SELECT '[' || coalesce(group_concat(row, ','), '') || ']' FROM (
    SELECT {job_row} AS row FROM job AS j
    WHERE j.timer_at <= ? AND j.id NOT IN (SELECT value FROM json_each(?)) ORDER BY j.timer_at LIMIT ?
)

-- name: next_timer
SELECT min(timer_at) FROM job WHERE timer_at IS NOT NULL

-- name: promotable
-- ?1: band, ?2: queued at or before. Like `due`.
SELECT '[' || coalesce(group_concat(row, ','), '') || ']' FROM (
    SELECT {job_row} AS row FROM job AS j
    WHERE j.status < 4 AND j.status = 1 AND j.priority = ? AND j.queued_at <= ?
    AND j.id NOT IN (SELECT value FROM json_each(?)) ORDER BY j.queued_at LIMIT ?
)

-- name: oldest_waiting
SELECT json_array(
    (SELECT min(queued_at) FROM job WHERE status < 4 AND status = 1 AND priority = 1),
    (SELECT min(queued_at) FROM job WHERE status < 4 AND status = 1 AND priority = 2),
    (SELECT min(queued_at) FROM job WHERE status < 4 AND status = 1 AND priority = 3)
)

-- name: next_promotion
-- When the longest-waiting low and medium jobs were queued.
SELECT json_array(
    (SELECT min(queued_at) FROM job WHERE status < 4 AND status = 1 AND priority = 3),
    (SELECT min(queued_at) FROM job WHERE status < 4 AND status = 1 AND priority = 2)
)

-- name: waiting
-- The seqs of all PENDING jobs; `waiting_jobs` then reads the jobs in portions.
SELECT json_group_array(j.seq) FROM job AS j WHERE j.status < 4 AND j.status = 1 AND {lanes}

-- name: count_waiting
SELECT count(*) FROM job AS j WHERE j.status < 4 AND j.status = 1 AND {lanes}

-- name: count_waiting_by_service
SELECT json_group_object(service, n) FROM (
    SELECT {service} AS service, count(*) AS n FROM job AS j WHERE j.status < 4 AND j.status = 1 AND {lanes} GROUP BY 1
)

-- name: of_lanes
-- Replaces {lanes}, unless all lanes are read. ?: JSON array of [service, band], ?: all except these.
(({service}, j.priority) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?))) <> ?

-- name: waiting_jobs
-- ?1: JSON array of seqs. Jobs that left the queue or the lanes meanwhile are omitted.
SELECT '[' || coalesce(group_concat({job_row}, ','), '') || ']'
FROM json_each(?) AS requested CROSS JOIN job AS j ON j.seq = requested.value
WHERE j.status = 1 AND {lanes}

-- name: running
SELECT '[' || coalesce(group_concat({job_row}, ','), '') || ']' FROM job AS j
WHERE j.status < 4 AND j.status = 3 AND {lanes}

-- name: turn_owners
-- The processes that own open turns which are not set aside. Skips through the index of turns; without INDEXED BY, SQLite
-- reads all open jobs. Passes over turns that are set aside, which are few and stay for `turns.grace` only.
WITH RECURSIVE owner (name) AS (
    SELECT (SELECT min(turn) FROM job INDEXED BY job_turn WHERE turn IS NOT NULL AND status < 4 AND status > 0)
    UNION ALL
    SELECT (SELECT min(turn) FROM job INDEXED BY job_turn
            WHERE turn IS NOT NULL AND status < 4 AND status > 0 AND turn > owner.name)
    FROM owner WHERE owner.name IS NOT NULL
)
SELECT json_group_array(name) FROM owner WHERE name IS NOT NULL

-- name: turns_of
-- Open turns of one process which are not set aside, oldest first.
SELECT '[' || coalesce(group_concat(row, ','), '') || ']' FROM (
    SELECT {job_row} AS row FROM job AS j WHERE j.turn = ? AND j.status < 4 AND j.status > 0 ORDER BY j.seq LIMIT ?
)

-- name: holds
SELECT json_group_array(json_array(id, job_id, service, region, until, band)) FROM hold

-- name: rules
SELECT {rules}

-- name: epochs
SELECT json_group_array(json_array(e.scope, e.number, coalesce(s.server, ''), r.scope IS NOT NULL))
FROM epoch AS e LEFT JOIN epoch_server AS s ON s.scope = e.scope LEFT JOIN rebuild_request AS r ON r.scope = e.scope

-- name: keys
SELECT json_group_array(json_array(id, role, user_id, name, hash, created_at, revoked_at))
FROM (SELECT * FROM api_key ORDER BY created_at, id)

-- name: count_keys
SELECT json_array(count(*), count(revoked_at)) FROM api_key

-- name: audit
-- Newest first. reads.py builds {where} from the filters.
SELECT json_group_array(json_array(id, at, who, action, target, details, outcome))
FROM (SELECT * FROM audit WHERE {where} ORDER BY id DESC LIMIT ?)

-- name: processes
SELECT json_group_array(json_array(name, seen_at, drain_asked, about)) FROM (SELECT * FROM process ORDER BY name)

-- name: session
-- ?: hash, now.
SELECT json_array(key_id, expires_at) FROM dashboard_session WHERE hash = ? AND expires_at > ?

-- name: activity
-- ?: the first minute.
SELECT json_group_array(json_array(process, minute, service, about)) FROM activity WHERE minute >= ?

-- name: waiting_by_service
-- Per service: since when the longest-waiting PENDING job has waited, and the number of RETRYING jobs.
SELECT json_group_array(json_array(service, oldest, retrying)) FROM (
    SELECT {service} AS service, min(CASE j.status WHEN 1 THEN j.waiting_since END) AS oldest,
           sum(j.status = 2) AS retrying
    FROM job AS j WHERE j.status < 4 AND j.status IN (1, 2) GROUP BY 1
)

-- name: user_loads
-- SQLite takes the columns outside of aggregates from the row that has the max(), so weight, group and plan are those of
-- the newest job (`rows.spec_of`).
SELECT json_group_array(json_array(user_id, waiting, running, oldest, weight, group_path, plan)) FROM (
    SELECT j.user_id, sum(j.status < 3) AS waiting, sum(j.status = 3) AS running,
           (SELECT min(w.waiting_since) FROM job AS w WHERE w.user_id = j.user_id AND w.status < 3 AND w.status = 1)
               AS oldest,
           j.spec ->> 3 AS weight, j.spec ->> 9 AS group_path, j.spec ->> 13 AS plan, max(j.seq)
    FROM job AS j WHERE j.status < 4 GROUP BY j.user_id ORDER BY waiting DESC, running DESC, j.user_id LIMIT ?
)

-- name: heads
-- ?: JSON array of users, service, jobs per user and band. In the order of `domain.job.Job.rank`.
SELECT '[' || coalesce(group_concat({job_row}, ','), '') || ']' FROM (
    SELECT j.seq, row_number() OVER (PARTITION BY j.user_id, j.priority ORDER BY j.attempt = 0, j.step = 0, j.seq) AS n
    FROM json_each(?) AS requested CROSS JOIN job AS j ON j.user_id = requested.value
    WHERE j.status < 3 AND j.status = 1 AND {service} = ?
) AS head CROSS JOIN job AS j ON j.seq = head.seq WHERE head.n <= ?

-- name: first_in_line
-- ?: service, limit.
SELECT '[' || coalesce(group_concat(row, ','), '') || ']' FROM (
    SELECT {job_row} AS row FROM job AS j WHERE j.status < 4 AND j.status = 1 AND {service} = ? ORDER BY j.seq LIMIT ?
)

-- name: dead_groups
-- The examples are the newest and the oldest job; ids grow with time.
SELECT json_group_array(json_array(code, message, service, n, first, last, newest, oldest)) FROM (
    SELECT j.error ->> '$.code' AS code, j.error ->> '$.message' AS message, {service} AS service, count(*) AS n,
           min(j.finished_at) AS first, max(j.finished_at) AS last, max(j.id) AS newest, min(j.id) AS oldest
    FROM job AS j WHERE j.status > 4 AND j.status = 5 GROUP BY 1, 2, 3 ORDER BY n DESC, last DESC LIMIT ?
)

-- name: facts
SELECT json_object(
    'server_version', sqlite_version(),
    'page_size', (SELECT page_size FROM pragma_page_size),
    'pages', (SELECT page_count FROM pragma_page_count),
    'free_pages', (SELECT freelist_count FROM pragma_freelist_count),
    'journal_mode', (SELECT journal_mode FROM pragma_journal_mode),
    'outbox_rows', (SELECT count(*) FROM outbox),
    'oldest_outbox_row', (SELECT min(written_at) FROM outbox),
    'webhooks_waiting', (SELECT count(*) FROM webhook_delivery WHERE state = 0),
    'webhooks_disabled', (SELECT count(*) FROM webhook_endpoint WHERE disabled_at IS NOT NULL)
)

-- name: answer
-- The results of the last commit, see apply.sql. The values are already JSON and are concatenated as text.
SELECT '[' || coalesce(group_concat('["' || kind || '",' || coalesce(value, 'null') || ']', ','), '') || ']' FROM temp.answer

-- name: usage_totals
-- ?1: span, ?2 and ?3: buckets from and before, ?4: interval (0 hour, 1 day, 2 month, 3 total), ?5: grouping as bits,
-- ?6 to ?13: filters, of which ?8, a group, includes its teams, ?14 to ?22: the key of the last row of the previous page,
-- ?23: limit. Rows that are not rolled up yet are added.
SELECT json_group_array(json_array(bucket, user_id, plan, group_path, feature_name, service, model, region, outcome,
                                   calls, waited, slot, tokens_in, tokens_out, tokens_cached, units, ignored, reported,
                                   price))
FROM (SELECT * FROM (
    SELECT
        CASE ?4
            WHEN 3 THEN 0
            WHEN 2 THEN strftime('%Y', bucket * ?1, 'unixepoch') * 12 + strftime('%m', bucket * ?1, 'unixepoch')
            ELSE bucket
        END AS bucket,
        iif(?5 & 1, user_id, '') AS user_id, iif(?5 & 2, plan, '') AS plan,
        iif(?5 & 4, group_path, '') AS group_path, iif(?5 & 8, feature_name, '') AS feature_name,
        iif(?5 & 16, service, '') AS service, iif(?5 & 32, model, '') AS model, iif(?5 & 64, region, '') AS region,
        iif(?5 & 128, outcome, -1) AS outcome,
        sum(calls) AS calls, sum(waited) AS waited, sum(slot) AS slot, sum(tokens_in) AS tokens_in,
        sum(tokens_out) AS tokens_out, sum(tokens_cached) AS tokens_cached, sum(units) AS units,
        sum(ignored) AS ignored, sum(reported) AS reported, sum(price) AS price
    FROM (
        SELECT bucket, user_id, service, feature_name, model, region, plan, group_path, outcome, calls, waited, slot,
               tokens_in, tokens_out, tokens_cached, units, ignored, reported, price
        FROM usage_total
        WHERE span = ?1 AND bucket >= ?2 AND bucket < ?3 AND (?6 IS NULL OR user_id = ?6)
        UNION ALL
        SELECT u.ended_at / 1000000 / ?1, {usage_names}, {usage_sums}
        FROM usage AS u
        WHERE u.id >= (SELECT next_id FROM usage_state)
        AND u.ended_at >= ?2 * ?1 * 1000000 AND u.ended_at < ?3 * ?1 * 1000000
        GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9
    )
    WHERE (?6 IS NULL OR user_id = ?6) AND (?7 IS NULL OR plan = ?7)
    AND (?8 IS NULL OR group_path = ?8 OR substr(group_path, 1, length(?8) + 1) = ?8 || '/')
    AND (?9 IS NULL OR feature_name = ?9) AND (?10 IS NULL OR service = ?10) AND (?11 IS NULL OR model = ?11)
    AND (?12 IS NULL OR region = ?12) AND (?13 IS NULL OR outcome = ?13)
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9
)
    WHERE ?14 IS NULL OR (bucket, user_id, plan, group_path, feature_name, service, model, region, outcome)
        > (?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22)
    ORDER BY bucket, user_id, plan, group_path, feature_name, service, model, region, outcome LIMIT ?23
)

-- name: latest_calls
-- ?1: limit, ?2: user or NULL.
SELECT json_group_array(json_array(ended_at, job_id, run, step, attempt, user_id, feature_name, service, region, outcome,
                                   waited, slot, plan, group_path, model, tokens_in, tokens_out, tokens_cached, units,
                                   ignored, price))
FROM (SELECT * FROM usage ORDER BY id DESC LIMIT ?1) WHERE ?2 IS NULL OR user_id = ?2
-- name: get_files
-- ?: JSON array of ids.
SELECT '[' || coalesce(group_concat({file_row}, ','), '') || ']' FROM file AS f
WHERE f.id IN (SELECT value FROM json_each(?))

-- name: list_files
-- ?: before twice, purpose twice, limit. Newest first.
SELECT '[' || coalesce(group_concat(row, ','), '') || ']' FROM (
    SELECT {file_row} AS row FROM file AS f WHERE f.job_id IS NULL AND f.state = 1
    AND (? IS NULL OR f.id < ?) AND (? IS NULL OR f.purpose = ?) ORDER BY f.id DESC LIMIT ?
)

-- name: list_files_of_user
-- ?: user, before twice, purpose twice, limit. Newest first.
SELECT '[' || coalesce(group_concat(row, ','), '') || ']' FROM (
    SELECT {file_row} AS row FROM file AS f WHERE f.user_id = ? AND f.job_id IS NULL AND f.state = 1
    AND (? IS NULL OR f.id < ?) AND (? IS NULL OR f.purpose = ?) ORDER BY f.id DESC LIMIT ?
)

-- name: oldest_files
SELECT '[' || coalesce(group_concat(row, ','), '') || ']' FROM (
    SELECT {file_row} AS row FROM file AS f WHERE f.job_id IS NULL AND f.state = 1
    AND (? IS NULL OR f.id > ?) AND (? IS NULL OR f.purpose = ?) ORDER BY f.id LIMIT ?
)

-- name: oldest_files_of_user
SELECT '[' || coalesce(group_concat(row, ','), '') || ']' FROM (
    SELECT {file_row} AS row FROM file AS f WHERE f.user_id = ? AND f.job_id IS NULL AND f.state = 1
    AND (? IS NULL OR f.id > ?) AND (? IS NULL OR f.purpose = ?) ORDER BY f.id LIMIT ?
)

-- name: get_file_batch
SELECT json_group_array(json_array({file_batch_columns})) FROM file_batch AS b WHERE b.id = ?

-- name: file_batch_of_key
SELECT json_group_array(json_array({file_batch_columns})) FROM file_batch AS b WHERE b.user_id = ? AND b.request_key = ?

-- name: list_file_batches
-- ?: before twice, limit. Newest first.
SELECT json_group_array(json(row)) FROM (
    SELECT json_array({file_batch_columns}) AS row FROM file_batch AS b
    WHERE (? IS NULL OR b.id < ?) ORDER BY b.id DESC LIMIT ?
)

-- name: list_file_batches_of_user
-- ?: user, before twice, limit. Newest first.
SELECT json_group_array(json(row)) FROM (
    SELECT json_array({file_batch_columns}) AS row FROM file_batch AS b
    WHERE b.user_id = ? AND (? IS NULL OR b.id < ?) ORDER BY b.id DESC LIMIT ?
)

-- name: open_file_batches
SELECT json_group_array(json(row)) FROM (
    SELECT json_array({file_batch_columns}) AS row FROM file_batch AS b WHERE b.ended_at IS NULL ORDER BY b.id LIMIT ?
)

-- name: file_uses
SELECT '[' || coalesce(group_concat(row, ','), '') || ']' FROM (
    SELECT {file_row} AS row FROM file_use AS u JOIN file AS f ON f.id = u.file_id WHERE u.job_id = ? ORDER BY f.id
)

-- name: file_parts
SELECT json_group_array(json_array(artifact_id, at, size)) FROM (
    SELECT artifact_id, at, size FROM file_part WHERE file_id = ? AND size IS NOT NULL ORDER BY at
)

-- name: known_artifacts
SELECT json_group_array(id) FROM artifact WHERE id IN (SELECT value FROM json_each(?))

-- name: file_totals
SELECT json_array(
    (SELECT count(*) FROM file), (SELECT count(*) FROM file WHERE state = 0),
    (SELECT count(*) FROM artifact WHERE state = 2), (SELECT coalesce(sum(size), 0) FROM artifact WHERE state = 1)
)

-- name: uploaded_bytes
-- ?: user.
SELECT json_array(coalesce(sum(size), 0)) FROM file
WHERE user_id = ? AND job_id IS NULL AND state = 1 AND purpose <> 'batch_output'

-- name: secret
SELECT json_array(value) FROM secret WHERE name = ?

-- name: webhook_users
SELECT json_group_array(DISTINCT user_id) FROM webhook_endpoint WHERE url IS NOT NULL AND disabled_at IS NULL

-- name: endpoints
-- ?1: user or NULL, ?2: JSON array of ids or NULL.
SELECT '[' || coalesce(group_concat(row, ','), '') || ']' FROM (
    SELECT json_array({endpoint_columns}) AS row FROM webhook_endpoint AS p
    WHERE CASE WHEN ?2 IS NULL THEN p.url IS NOT NULL AND (?1 IS NULL OR p.user_id = ?1)
               ELSE p.id IN (SELECT value FROM json_each(?2)) END
    ORDER BY p.created_at, p.id
)

-- name: deliveries
-- ?9: the last id of the previous page, ?10: limit.
SELECT '[' || coalesce(group_concat(row, ','), '') || ']' FROM (
    SELECT json_array({delivery_columns}) AS row FROM webhook_delivery AS d
    WHERE {deliveries_where}
    AND (?9 IS NULL OR d.seq < (SELECT seq FROM webhook_delivery WHERE id = ?9))
    ORDER BY d.seq DESC LIMIT ?10
)

-- name: count_deliveries
SELECT json_group_array(json_array(state, n)) FROM (SELECT state, count(*) AS n FROM webhook_delivery GROUP BY state)

-- name: next_delivery
SELECT min(next_at) FROM webhook_delivery WHERE state = 0

-- name: schedules
-- ?1: user or NULL, ?2: JSON array of ids or NULL.
SELECT '[' || coalesce(group_concat(row, ','), '') || ']' FROM (
    SELECT json_array({schedule_columns}) AS row FROM schedule AS s
    WHERE (?1 IS NULL OR s.user_id = ?1) AND (?2 IS NULL OR s.id IN (SELECT value FROM json_each(?2))) ORDER BY s.id
)

-- name: next_schedule
SELECT json_array((SELECT min(next_at) FROM schedule WHERE paused_at IS NULL),
                  EXISTS (SELECT 1 FROM schedule WHERE paused_at IS NULL AND waiting_at IS NOT NULL))

-- name: due_schedules
SELECT '[' || coalesce(group_concat(row, ','), '') || ']' FROM (
    SELECT json_array({schedule_columns}) AS row FROM schedule AS s
    WHERE s.paused_at IS NULL AND (s.next_at <= ?1 OR s.waiting_at IS NOT NULL) ORDER BY s.next_at, s.id
)

-- name: has_open_run
SELECT EXISTS (
    SELECT 1 FROM schedule_run AS r CROSS JOIN job AS j ON j.id = r.job_id WHERE r.schedule_id = ?1 AND j.status < 4
)

-- name: schedule_runs
-- ?2: the seq of the last run of the previous page, or NULL, ?3: limit.
SELECT '[' || coalesce(group_concat(row, ','), '') || ']' FROM (
    SELECT json_array(seq, outcome, at, due_at, job_id, count, detail) AS row FROM schedule_run
    WHERE schedule_id = ?1 AND (?2 IS NULL OR seq < ?2) ORDER BY seq DESC LIMIT ?3
)

-- name: budget_counters
-- ?1: JSON array of [budget, subject], or null for all; ?2: limit.
SELECT json_group_array(json_array({counter_columns}, 0)) FROM (
    SELECT value ->> 0 AS budget, value ->> 1 AS subject FROM json_each(?1) WHERE ?1 IS NOT NULL
    UNION ALL
    SELECT budget, subject FROM (
        SELECT budget, subject FROM budget_counter UNION SELECT budget, subject FROM budget_override LIMIT ?2
    ) WHERE ?1 IS NULL
) AS k LEFT JOIN budget_counter AS c ON c.budget = k.budget AND c.subject = k.subject

-- name: budgets_to_warn
-- ?1: JSON array of [budget, start of its window, amount, threshold, number of the threshold], ?2: limit.
-- Most counters are below the smallest amount of any subject: they cost no look at the amount of their own.
WITH t AS MATERIALIZED (
    SELECT value ->> 0 AS budget, value ->> 1 AS window_start, value ->> 2 AS amount, value ->> 3 AS share,
        value ->> 4 AS number, min(value ->> 2, coalesce((
            SELECT min(o.amount) FROM budget_override AS o WHERE o.budget = value ->> 0
        ), value ->> 2)) AS smallest
    FROM json_each(?1)
)
SELECT json_group_array(json_array({counter_columns}, 0)) FROM (
    SELECT c.budget, c.subject FROM t CROSS JOIN budget_counter AS c ON c.budget = t.budget
    WHERE c.window_start >= t.window_start AND c.warned < t.number AND c.used >= t.share * t.smallest
    AND c.used >= t.share * coalesce((
        SELECT o.amount FROM budget_override AS o WHERE o.budget = c.budget AND o.subject IN (c.subject, '')
        ORDER BY o.subject DESC LIMIT 1
    ), t.amount) LIMIT ?2
) AS k CROSS JOIN budget_counter AS c ON c.budget = k.budget AND c.subject = k.subject

-- name: held_budgets
-- With the number of jobs that they hold.
SELECT json_group_array(json_array({counter_columns}, k.held))
FROM (SELECT budget, subject, count(*) AS held FROM budget_hold GROUP BY budget, subject) AS k
LEFT JOIN budget_counter AS c ON c.budget = k.budget AND c.subject = k.subject

-- name: holding_budgets
-- One step in the index for each budget and subject, not for each job.
WITH RECURSIVE one (job_id) AS (
    SELECT (SELECT h.job_id FROM budget_hold AS h ORDER BY h.budget, h.subject LIMIT 1)
    UNION ALL
    SELECT coalesce(
        (SELECT h.job_id FROM budget_hold AS h WHERE h.budget = l.budget AND h.subject > l.subject
         ORDER BY h.subject LIMIT 1),
        (SELECT h.job_id FROM budget_hold AS h WHERE h.budget > l.budget ORDER BY h.budget, h.subject LIMIT 1)
    ) FROM one CROSS JOIN budget_hold AS l ON l.job_id = one.job_id
)
SELECT json_group_array(json_array({counter_columns}, 0))
FROM one CROSS JOIN budget_hold AS k ON k.job_id = one.job_id
LEFT JOIN budget_counter AS c ON c.budget = k.budget AND c.subject = k.subject

-- name: waiting_of_user
-- ?1: user, ?2: JSON array of services or null, ?3: JSON array of ids to leave out, ?4: limit, ?5: null, or the band whose
-- jobs are left out, like promoted ones.
SELECT '[' || coalesce(group_concat(row, ','), '') || ']' FROM (
    SELECT {job_row} AS row FROM job AS j
    WHERE j.user_id = ?1 AND j.status < 3 AND j.status = 1 AND j.turn IS NULL
    AND j.id NOT IN (SELECT value FROM json_each(?3)) AND (?5 IS NULL OR (j.priority <> ?5 AND j.promoted_at IS NULL))
    AND (?2 IS NULL OR {service} IN (SELECT value FROM json_each(?2)))
    LIMIT ?4
)
