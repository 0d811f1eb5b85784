-- The reads. Each answers with one row and one column of JSON, whatever the number of jobs: see rows.py.
-- `status < 4` and its like are spelled out because SQLite takes a partial index only where its condition is repeated.

-- name: get
-- A job with everything kept beside it.
SELECT {record_row} FROM job AS j WHERE j.id = ?

-- name: get_records
-- ?1: JSON array of ids.
SELECT '[' || coalesce(group_concat({record_row}, ','), '') || ']'
FROM json_each(?) AS wanted CROSS JOIN job AS j ON j.id = wanted.value

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

-- name: get_batch
SELECT {batch_row} FROM job_batch AS b WHERE b.id = ?

-- name: list_batches
-- Newest first. {whose} says whose and before which.
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
-- ?1: batch, ?2: the caller's name for it, ?3: its number if that can be one.
SELECT {item_row} FROM batch_item AS i LEFT JOIN job AS j ON j.id = i.job_id
WHERE i.batch_id = ?1 AND (i.custom_id = ?2 OR i.item = ?3) ORDER BY i.custom_id IS NOT ?2 LIMIT 1

-- name: ended_batches
-- Of each the last open item is looked for, which is soon found: the last ones are mostly the last to end.
SELECT json_group_array(id) FROM (
    SELECT b.id FROM job_batch AS b WHERE b.finished_at IS NULL AND (
        SELECT 1 FROM batch_item AS i CROSS JOIN job AS j ON j.id = i.job_id
        WHERE i.batch_id = b.id AND j.status < 4 ORDER BY i.item DESC LIMIT 1
    ) IS NULL ORDER BY b.id LIMIT ?
)

-- name: was_submitted
SELECT EXISTS (SELECT 1 FROM idempotency WHERE user_id = ? AND key = ?)

-- name: outbox
-- ?1: this process, ?2: older than, then the lanes. The outbox is small and scanned whole: ids are not in the order of
-- commits. A row is taken for one of the lane that its job is in now, and that of a job that is gone for everybody's.
SELECT '[' || coalesce(group_concat(line, ','), '') || ']' FROM (
    SELECT '[' || o.id || ',' || json_quote(o.job_id) || ',' || coalesce(CASE WHEN j.seq IS NOT NULL THEN {job_row} END, 'null') || ']' AS line
    FROM outbox AS o LEFT JOIN job AS j ON j.id = o.job_id
    WHERE (o.origin <> ? OR o.written_at < ?) AND (j.seq IS NULL OR {lanes}) ORDER BY o.id LIMIT ?
)

-- name: due
-- Jobs whose timer has rung, earliest first, but for those of the JSON array ?2. Asked by the writer, within the
-- transaction that moves them.
SELECT '[' || coalesce(group_concat(row, ','), '') || ']' FROM (
    SELECT {job_row} AS row FROM job AS j
    WHERE j.timer_at <= ? AND j.id NOT IN (SELECT value FROM json_each(?)) ORDER BY j.timer_at LIMIT ?
)

-- name: next_timer
SELECT min(timer_at) FROM job WHERE timer_at IS NOT NULL

-- name: promotable
-- ?1: band, ?2: queued up to here. As `due`.
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
-- When the longest waiting low and medium job were queued.
SELECT json_array(
    (SELECT min(queued_at) FROM job WHERE status < 4 AND status = 1 AND priority = 3),
    (SELECT min(queued_at) FROM job WHERE status < 4 AND status = 1 AND priority = 2)
)

-- name: waiting
-- The numbers of all PENDING jobs; `waiting_jobs` then reads them in portions.
SELECT json_group_array(j.seq) FROM job AS j WHERE j.status < 4 AND j.status = 1 AND {lanes}

-- name: count_waiting
SELECT count(*) FROM job AS j WHERE j.status < 4 AND j.status = 1 AND {lanes}

-- name: of_lanes
-- Takes the place of {lanes}, unless everything is asked for. ?: JSON array of [service, band], ?: all but these.
(({service}, j.priority) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?))) <> ?

-- name: waiting_jobs
-- ?1: JSON array of numbers. Those that left the line or the lanes meanwhile are left out.
SELECT '[' || coalesce(group_concat({job_row}, ','), '') || ']'
FROM json_each(?) AS wanted CROSS JOIN job AS j ON j.seq = wanted.value
WHERE j.status = 1 AND {lanes}

-- name: running
SELECT '[' || coalesce(group_concat({job_row}, ','), '') || ']' FROM job AS j
WHERE j.status < 4 AND j.status = 3 AND {lanes}

-- name: turn_owners
-- The processes that own open turns: from one to the next by the index, however many turns each has.
WITH RECURSIVE owner (name) AS (
    SELECT (SELECT min(turn) FROM job WHERE turn IS NOT NULL AND status < 4)
    UNION ALL
    SELECT (SELECT min(turn) FROM job WHERE turn IS NOT NULL AND status < 4 AND turn > owner.name)
    FROM owner WHERE owner.name IS NOT NULL
)
SELECT json_group_array(name) FROM owner WHERE name IS NOT NULL

-- name: turns_of
-- Open turns of one process, oldest first.
SELECT '[' || coalesce(group_concat(row, ','), '') || ']' FROM (
    SELECT {job_row} AS row FROM job AS j WHERE j.turn = ? AND j.status < 4 ORDER BY j.seq LIMIT ?
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
-- Newest first. {where} is built by reads.py of the filters given.
SELECT json_group_array(json_array(id, at, who, action, target, details, outcome))
FROM (SELECT * FROM audit WHERE {where} ORDER BY id DESC LIMIT ?)

-- name: processes
SELECT json_group_array(json_array(name, seen_at, drain_asked, about)) FROM (SELECT * FROM process ORDER BY name)

-- name: session
-- ?: hash, now.
SELECT json_array(key_id, expires_at) FROM dashboard_session WHERE hash = ? AND expires_at > ?

-- name: activity
-- ?: the first minute that is asked for.
SELECT json_group_array(json_array(process, minute, service, about)) FROM activity WHERE minute >= ?

-- name: waiting_by_service
-- Of PENDING jobs since when the longest one waits, and how many are RETRYING.
SELECT json_group_array(json_array(service, oldest, retrying)) FROM (
    SELECT {service} AS service, min(CASE j.status WHEN 1 THEN j.waiting_since END) AS oldest,
           sum(j.status = 2) AS retrying
    FROM job AS j WHERE j.status < 4 AND j.status IN (1, 2) GROUP BY 1
)

-- name: user_loads
-- SQLite takes what is beside max() from the row that has it: the weight is that of the newest job.
SELECT json_group_array(json_array(user_id, waiting, running, oldest, weight)) FROM (
    SELECT j.user_id, sum(j.status < 3) AS waiting, sum(j.status = 3) AS running,
           (SELECT min(w.waiting_since) FROM job AS w WHERE w.user_id = j.user_id AND w.status < 3 AND w.status = 1)
               AS oldest,
           j.spec ->> 3 AS weight, max(j.seq)
    FROM job AS j WHERE j.status < 4 GROUP BY j.user_id ORDER BY waiting DESC, running DESC, j.user_id LIMIT ?
)

-- name: heads
-- ?: JSON array of users, service, how many of each user and band. In the order of `domain.job.Job.rank`.
SELECT '[' || coalesce(group_concat({job_row}, ','), '') || ']' FROM (
    SELECT j.seq, row_number() OVER (PARTITION BY j.user_id, j.priority ORDER BY j.attempt = 0, j.step = 0, j.seq) AS n
    FROM json_each(?) AS wanted CROSS JOIN job AS j ON j.user_id = wanted.value
    WHERE j.status < 3 AND j.status = 1 AND {service} = ?
) AS head CROSS JOIN job AS j ON j.seq = head.seq WHERE head.n <= ?

-- name: first_in_line
-- ?: service, how many.
SELECT '[' || coalesce(group_concat(row, ','), '') || ']' FROM (
    SELECT {job_row} AS row FROM job AS j WHERE j.status < 4 AND j.status = 1 AND {service} = ? ORDER BY j.seq LIMIT ?
)

-- name: dead_groups
-- The examples are the newest and the oldest: ids grow with time.
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
    'oldest_outbox_row', (SELECT min(written_at) FROM outbox)
)

-- name: answer
-- What the last commit left behind, see apply.sql.
-- Its values are JSON already, and are spliced as text.
SELECT '[' || coalesce(group_concat('["' || kind || '",' || coalesce(value, 'null') || ']', ','), '') || ']' FROM temp.answer
