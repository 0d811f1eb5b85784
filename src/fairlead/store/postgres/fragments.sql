-- Expressions shared by several statements: `{name}` in a query is replaced by the fragment.
-- A fragment that contains another one comes before it.

-- name: new_jobs
INSERT INTO fairlead.job AS j ({new_job_columns})
    SELECT {new_job_values} FROM unnest({new_job_arrays}) AS g ({new_job_columns})

-- name: new_job_columns
id, user_id, feature_name, status, priority,
created_at, queued_at, waiting_since, scheduled_at, timer_at, deadline_at,
spec, input, metadata, idempotency_key, turn

-- name: new_job_values
-- The values of a job: those of the row g, or the values for all jobs, $18 to $32.
g.id, coalesce(g.user_id, $18::text), coalesce(g.feature_name, $19::text),
coalesce(g.status, $20::smallint), coalesce(g.priority, $21::smallint),
coalesce(g.created_at, $22::bigint), coalesce(g.queued_at, $23::bigint),
coalesce(g.waiting_since, $24::bigint), coalesce(g.scheduled_at, $25::bigint),
coalesce(g.timer_at, $26::bigint), coalesce(g.deadline_at, $27::bigint),
coalesce(g.spec, $28::text), coalesce(g.input, $29::text), coalesce(g.metadata, $30::text),
coalesce(g.idempotency_key, $31::text), coalesce(g.turn, $32::text)

-- name: new_job_arrays
-- $1: separator of texts, $2: ids. Each other column has two parameters, of which one is NULL: $3 to $17 are one value
-- per job.
string_to_array($2::text, $1::text), string_to_array($3::text, $1::text),
string_to_array($4::text, $1::text), $5::text::smallint[], $6::text::smallint[],
$7::text::bigint[], $8::text::bigint[], $9::text::bigint[], $10::text::bigint[], $11::text::bigint[],
$12::text::bigint[],
string_to_array($13::text, $1::text), string_to_array($14::text, $1::text), $15::text[], $16::text[],
$17::text[]

-- name: new_keys
-- $37: users, $38: idempotency keys, $39: body hashes, $40: job ids. Claims either all keys or, if one of them is known,
-- none.
INSERT INTO fairlead.idempotency (user_id, key, body_hash, job_id)
    SELECT * FROM unnest($37::text[], $38::text[], $39::text[], $40::text[])
    WHERE NOT EXISTS (
        SELECT FROM unnest($37::text[], $38::text[]) AS g (user_id, key)
        JOIN fairlead.idempotency AS i ON i.user_id = g.user_id AND i.key = g.key
    )

-- name: late
-- Whether the outbox has rows of the services $35 (NULL: not checked) that no process relays or that are older than $36 µs.
$35::text[] IS NOT NULL AND EXISTS (
    SELECT FROM fairlead.outbox AS o WHERE o.service = ANY ($35::text[]) AND (
        o.origin <> $33::text
        OR o.written_at < coalesce($34::bigint, (extract(epoch FROM now()) * 1000000)::bigint) - $36::bigint
    )
)

-- name: outbox_jobs
-- The first outbox rows of `found` that together have $3 jobs, with the columns read by `reads.change_from`.
counted AS (
    SELECT id, coalesce(job_ids, ARRAY[job_id]) AS ids,
           sum(coalesce(cardinality(job_ids), 1)) OVER (ORDER BY id) AS total
    FROM found
), outbox_rows AS (
    SELECT id, unnest(ids) AS job_id FROM counted WHERE total - cardinality(ids) < $3::bigint
)
SELECT o.id, o.job_id, {job_columns}
FROM outbox_rows AS o LEFT JOIN fairlead.job AS j ON j.id = o.job_id
ORDER BY o.id, j.seq

-- name: record_columns
-- A job, aliased j, with its input, results and attempts. Read by `reads.record_from`.
{result_columns},
(SELECT json_agg(json_build_array(a.step, a.service, a.round, a.attempt, a.error::json, a.started_at, a.ended_at,
                                  a.worker, a.region) ORDER BY a.run)::text
    FROM fairlead.attempt AS a WHERE a.seq = j.seq),
j.result_about, j.result_data, j.result_metrics

-- name: result_columns
-- The first of the `record_columns`: the job, its input and metadata, and its results.
{job_columns}, j.input, j.metadata,
(SELECT json_agg(json_build_array(r.step, r.service, r.round, r.data, r.metrics, r.finished_at, r.lease)
                 ORDER BY r.step, r.round)::text
    FROM fairlead.step_result AS r WHERE r.seq = j.seq)

-- name: job_columns
-- A row of `job`, aliased j. Read by `store.rows.job_of`.
j.seq, j.id, j.user_id, j.feature_name, j.status, j.priority, j.step, j.run, j.attempt, j.round,
j.created_at, j.queued_at, j.waiting_since, j.scheduled_at, j.promoted_at, j.started_at, j.finished_at,
j.last_progress_at, j.timer_at, j.deadline_at, j.lease, j.worker, j.call_started_at, j.call_deadline,
j.call_region, j.spilled_at, j.turn, j.retryable, j.error, j.progress, j.goes_back, j.spec

-- name: batch_row
-- A batch, aliased b. Counts the jobs, unless the batch is settled and its counts are stored. Read by
-- `records.batch_state_of`.
b.id, b.user_id, b.name, b.metadata, b.created_at, b.total, b.finished_at,
CASE WHEN b.counts IS NOT NULL THEN b.counts ELSE (
    SELECT json_agg(json_build_array(found.status, found.n))::text FROM (
        SELECT j.status, count(*) AS n FROM fairlead.batch_item AS i JOIN fairlead.job AS j ON j.id = i.job_id
        WHERE i.batch_id = b.id GROUP BY j.status
    ) AS found
) END

-- name: rules
-- The version, the declaration, [[service, limit, paused], …], [[service, limit, best latency, history], …], and
-- [[kind, name, region, rate], …]. Read by `rules.rules_of`.
SELECT version, declared, (
    SELECT coalesce(json_agg(json_build_array(service, slots, paused)), '[]')::text
    FROM fairlead.service_override
), (
    SELECT coalesce(json_agg(json_build_array(service, slots, best, history::json)), '[]')::text
    FROM fairlead.adaptive_limit
), (
    SELECT coalesce(json_agg(json_build_array(kind, name, region, rate)), '[]')::text FROM fairlead.rate_override
) FROM fairlead.rules

-- name: context
-- The results of earlier steps of the job j, newest round of each, in the format of `domain.job.context_of`.
-- Concatenated as text: the data is already JSON, and most readers only pass it on.
CASE j.step WHEN 0 THEN '{}' ELSE '{' || coalesce((
    SELECT string_agg(
        to_json('step_' || r.step || '_' || r.service)::text
        || ':{"status":"SUCCESS","data":' || r.data || ',"metrics":' || r.metrics || '}', ',' ORDER BY r.step)
    FROM (
        SELECT DISTINCT ON (step) * FROM fairlead.step_result WHERE seq = j.seq AND step < j.step
        ORDER BY step, round DESC
    ) AS r
), '') || '}' END

-- name: moved_columns
-- The columns that every move writes. `j` is the job, `g` the move.
status = g.status, ended = CASE WHEN g.status > 3 THEN g.status END,
run = j.run + 1, step = g.step, attempt = g.attempt, round = g.round,
timer_at = g.timer_at, waiting_since = g.waiting_since, finished_at = g.finished_at,
retryable = g.retryable, error = g.error,
queued_at = coalesce(g.queued_at, j.queued_at), priority = coalesce(g.priority, j.priority),
promoted_at = coalesce(g.promoted_at, j.promoted_at),
last_progress_at = coalesce(g.last_progress_at, j.last_progress_at),
lease = NULL, worker = NULL, call_started_at = NULL, call_deadline = NULL, call_region = NULL,
spilled_at = coalesce(g.spilled_at, j.spilled_at), goes_back = g.goes_back, progress = NULL

-- name: moves
-- The moves, $1 to $17; `n` counts them from 1.
unnest($1::text[], $2::text::int[], $3::text::smallint[], $4::text::int[], $5::text::int[], $6::text::int[],
       $7::text::bigint[], $8::text::bigint[], $9::text::bigint[],
       $10::text::boolean[], $11::text[], $12::text::bigint[], $13::text::smallint[], $14::text::bigint[],
       $15::text::bigint[], $16::text::bigint[], $17::text[]) WITH ORDINALITY
AS g (job_id, run, status, step, attempt, round, timer_at, waiting_since, finished_at,
      retryable, error, queued_at, priority, promoted_at, last_progress_at, spilled_at, goes_back, n)

-- name: service
-- The service of the current step of the job j, or of the last step when all are done, like `domain.job.Job.service`.
-- The spec begins with the names of the steps, `[["a","b"],…`. The name is cut out of the text, which takes a fifth of
-- the time of parsing it. The spec is parsed as JSON only if it contains a backslash (92) or if all steps are done.
coalesce(
    CASE strpos(j.spec, chr(92)) WHEN 0 THEN
        nullif(split_part(split_part(j.spec, '"],', 1), '"', 2 * j.step + 2), '') END,
    j.spec::json -> 0 ->> j.step,
    j.spec::json -> 0 ->> -1
)

-- name: started_columns
-- `j` is the job, `g` the start, `t` the time.
status = 3, run = j.run + 1, attempt = j.attempt + 1, lease = g.lease, worker = g.worker,
call_started_at = t.now, call_deadline = t.now + g.timeout, call_region = g.region,
started_at = coalesce(j.started_at, t.now), timer_at = j.deadline_at

-- name: usage_names
-- What ledger rows, aliased u, are grouped by, in the order of the columns of `usage_total`.
u.user_id, u.service, u.feature_name, coalesce(u.model, ''), coalesce(u.region, ''), coalesce(u.plan, ''),
coalesce(u.group_path, ''), u.outcome

-- name: usage_sums
-- The sums over ledger rows, aliased u, in the order of the columns of `usage_total`.
count(*), sum(u.waited)::bigint, sum(u.slot)::bigint, coalesce(sum(u.tokens_in), 0)::bigint,
coalesce(sum(u.tokens_out), 0)::bigint, coalesce(sum(u.tokens_cached), 0)::bigint, coalesce(sum(u.units), 0),
coalesce(sum(u.ignored), 0)::bigint, count(coalesce(u.units, u.tokens_in, u.tokens_out)),
coalesce(sum(u.price), 0)::bigint
-- name: file_columns
-- A file `f`.
f.id, f.user_id, f.artifact_id, f.name, f.content_type, f.purpose, f.created_at, f.state, f.size, f.sha256,
f.expires_at, f.job_id

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
-- $1 to $8: the columns of `DeliveryFilter.row`. A user sees no deliveries to endpoints of others.
($1::text IS NULL OR (d.user_id = $1 AND (d.endpoint_id IS NULL OR EXISTS (
    SELECT FROM fairlead.webhook_endpoint AS own WHERE own.id = d.endpoint_id AND own.user_id = $1
))))
AND ($2::text IS NULL OR d.id = ANY (ARRAY(SELECT jsonb_array_elements_text($2::jsonb))))
AND ($3::text IS NULL OR d.job_id = $3)
AND ($4::text IS NULL OR d.endpoint_id = $4)
AND ($5::smallint IS NULL OR d.state = $5)
AND ($6::text IS NULL OR d.event = $6)
AND ($7::bigint IS NULL OR d.created_at >= $7)
AND ($8::bigint IS NULL OR d.created_at < $8)

-- name: counter_columns
-- The first columns of `store.budgets.counter_of`, of the key `k` and the counter `c`, which may be missing.
k.budget, k.subject, c.window_start, c.used, c.reserved, c.calls, c.mean, c.warned, (
    SELECT o.amount FROM fairlead.budget_override AS o WHERE o.budget = k.budget AND o.subject IN (k.subject, '')
    ORDER BY o.subject DESC LIMIT 1
)

-- name: file_batch_columns
b.id, b.user_id, b.version, b.created_at, b.ended_at, b.data
