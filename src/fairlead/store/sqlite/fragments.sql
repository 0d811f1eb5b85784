-- Expressions shared by several statements: `{name}` in a query is replaced by the fragment.
-- A fragment that contains another one comes before it.

-- name: record_row
-- A job, aliased j, with its input, results and attempts, as one JSON array. Read by `rows.record_of`.
json_array(
    {result_values},
    (SELECT json_group_array(json_array(
            step, service, round, attempt, json(error), started_at, ended_at, worker, region))
        FROM (SELECT * FROM attempt WHERE seq = j.seq ORDER BY run))
)

-- name: result_values
-- The first values of a `record_row`: the job, its input and metadata, and its results.
{job_row},
(SELECT input FROM job_input WHERE seq = j.seq),
(SELECT metadata FROM job_note WHERE seq = j.seq),
(SELECT json_group_array(json_array(step, service, round, data, metrics, finished_at, lease))
    FROM (SELECT * FROM step_result WHERE seq = j.seq ORDER BY step, round))

-- name: batch_row
-- A batch, aliased b, as one JSON array. Counts the jobs, unless the batch is settled and its counts are stored. Read
-- by `records.batch_state_of`.
json_array(
    b.id, b.user_id, b.name, b.metadata, b.created_at, b.total, b.finished_at,
    CASE WHEN b.counts IS NOT NULL THEN json(b.counts) ELSE json((
        SELECT json_group_array(json_array(status, n)) FROM (
            SELECT j.status, count(*) AS n FROM batch_item AS i CROSS JOIN job AS j ON j.id = i.job_id
            WHERE i.batch_id = b.id GROUP BY j.status
        )
    )) END
)

-- name: item_row
-- An item of a batch, aliased i, with its job, aliased j, as one JSON array.
json_array(i.item, i.custom_id, i.job_id, json(CASE WHEN j.seq IS NOT NULL THEN {job_row} END))

-- name: job_row
-- A row of `job`, aliased j, as one JSON array. Read by `store.rows.job_of`.
json_array(
    j.seq, j.id, j.user_id, j.feature_name, j.status, j.priority, j.step, j.run, j.attempt, j.round,
    j.created_at, j.queued_at, j.waiting_since, j.scheduled_at, j.promoted_at, j.started_at, j.finished_at,
    j.last_progress_at, j.timer_at, j.deadline_at, j.lease, j.worker, j.call_started_at, j.call_deadline,
    j.call_region, j.spilled_at, j.turn, j.retryable, j.error, j.progress, j.goes_back, j.spec
)

-- name: rules
-- [version, declaration, [[service, limit, paused], …], [[service, limit, best latency, history], …],
-- [[kind, name, region, rate], …]]. Read by `rules.rules_of`.
(SELECT json_array(version, json(declared), (
    SELECT json_group_array(json_array(service, slots, paused)) FROM service_override
), (
    SELECT json_group_array(json_array(service, slots, best, json(history))) FROM adaptive_limit
), (
    SELECT json_group_array(json_array(kind, name, region, rate)) FROM rate_override
)) FROM rules)

-- name: context
-- The results of earlier steps of the job j, newest round of each, in the format of `domain.job.context_of`.
-- Concatenated as text: the data is already JSON, and most readers only pass it on.
CASE j.step WHEN 0 THEN '{}' ELSE '{' || coalesce((
    SELECT group_concat(
        json_quote('step_' || r.step || '_' || r.service)
        || ':{"status":"SUCCESS","data":' || r.data || ',"metrics":' || r.metrics || '}', ',')
    FROM step_result AS r
    WHERE r.seq = j.seq AND r.step < j.step AND r.round = (
        SELECT max(round) FROM step_result WHERE seq = r.seq AND step = r.step
    )
), '') || '}' END

-- name: service
-- The service of the current step of the job j, or of the last step when all are done, like `domain.job.Job.service`.
coalesce(j.spec ->> ('$[0][' || j.step || ']'), j.spec ->> '$[0][#-1]')

-- name: usage_names
-- What ledger rows, aliased u, are grouped by, in the order of the columns of `usage_total`.
u.user_id, u.service, u.feature_name, coalesce(u.model, ''), coalesce(u.region, ''), coalesce(u.plan, ''),
coalesce(u.group_path, ''), u.outcome

-- name: usage_sums
-- The sums over ledger rows, aliased u, in the order of the columns of `usage_total`.
count(*), sum(u.waited), sum(u.slot), coalesce(sum(u.tokens_in), 0), coalesce(sum(u.tokens_out), 0),
coalesce(sum(u.tokens_cached), 0), coalesce(sum(u.units), 0.0), coalesce(sum(u.ignored), 0),
count(coalesce(u.units, u.tokens_in, u.tokens_out)), coalesce(sum(u.price), 0)
-- name: file_row
-- A file `f` as a JSON array.
json_array(f.id, f.user_id, f.artifact_id, f.name, f.content_type, f.purpose, f.created_at, f.state, f.size, f.sha256,
           f.expires_at, f.job_id)

-- name: endpoint_columns
-- The columns of `store.webhooks.endpoint_of`, of `p`.
p.id, p.user_id, p.url, p.events, p.secrets, p.name, p.created_at, p.disabled_at, p.failing_since, p.disabled_reason

-- name: delivery_columns
-- The columns of `store.webhooks.delivery_of`, of `d`.
d.id, d.event, d.receiver, d.user_id, d.created_at, d.job_id, d.batch_id, d.endpoint_id, d.state, d.attempts, d.next_at,
d.about, d.log, d.body

-- name: schedule_columns
-- The columns of `store.schedules.schedule_of`, of `s`.
s.id, s.user_id, s.name, s.declared, s.spec, s.timing, s.secret, s.created_at, s.revision, s.next_at, s.last_at,
s.waiting_at, s.paused_at

-- name: deliveries_where
-- ?1 to ?8: the columns of `DeliveryFilter.row`. A user sees no deliveries to endpoints of others.
(?1 IS NULL OR (d.user_id = ?1 AND (d.endpoint_id IS NULL OR EXISTS (
    SELECT 1 FROM webhook_endpoint AS own WHERE own.id = d.endpoint_id AND own.user_id = ?1
))))
AND (?2 IS NULL OR d.id IN (SELECT value FROM json_each(?2)))
AND (?3 IS NULL OR d.job_id = ?3)
AND (?4 IS NULL OR d.endpoint_id = ?4)
AND (?5 IS NULL OR d.state = ?5)
AND (?6 IS NULL OR d.event = ?6)
AND (?7 IS NULL OR d.created_at >= ?7)
AND (?8 IS NULL OR d.created_at < ?8)

-- name: rolled_counter
-- Moves a counter to the window of the new row, unless its own is later.
window_start = max(window_start, excluded.window_start),
mean = iif(excluded.window_start > window_start AND calls > 0, used / max(calls, 1), mean),
warned = iif(excluded.window_start > window_start, 0, warned)

-- name: counter_columns
-- The first columns of `store.budgets.counter_of`, of the key `k` and the counter `c`, which may be missing.
k.budget, k.subject, c.window_start, c.used, c.reserved, c.calls, c.mean, c.warned, (
    SELECT o.amount FROM budget_override AS o WHERE o.budget = k.budget AND o.subject IN (k.subject, '')
    ORDER BY o.subject DESC LIMIT 1
)

-- name: file_batch_columns
b.id, b.user_id, b.version, b.created_at, b.ended_at, b.data

-- name: rows
-- The elements of the body of a row of `batch`, which are arrays, with their keys. SQLite writes an array as text each time
-- that a statement refers to the `value` of json_each. The offset keeps the subquery from being merged into the statement,
-- so that the array is written once.
(SELECT key, value FROM json_each(NEW.body) LIMIT -1 OFFSET 0)
