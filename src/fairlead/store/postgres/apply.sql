-- The statements of a commit. A commit is one transaction: `begin`, then one statement per kind of transition in the
-- batch. The statement applies all transitions of its kind, which are passed as arrays.
--
-- Every statement looks up the rows of its arrays by index, one after the other, and the arrays are sorted by job id.
-- All processes therefore lock the rows of a kind in the same order, and the kinds in the same order. The group commit
-- retries the deadlocks that can still happen (two processes with different moves of the same two jobs). `begin` forces
-- the planner to use the indexes. Otherwise it may choose a full scan, because its statistics date from when the table
-- was small.

-- name: begin
-- Returns the transaction id, by which a COMMIT whose reply was lost can be checked, and the time to store.
SELECT pg_current_xact_id()::text, (extract(epoch FROM now()) * 1000000)::bigint,
       set_config('lock_timeout', $1, true), set_config('plan_cache_mode', 'force_generic_plan', true),
       set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
       set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true)

-- name: hold_to_plans
-- Makes the settings of `begin` for the whole session, so that a single statement can be a transaction by itself.
SELECT set_config('lock_timeout', $1, false), set_config('plan_cache_mode', 'force_generic_plan', false),
       set_config('enable_seqscan', 'off', false), set_config('enable_hashjoin', 'off', false),
       set_config('enable_mergejoin', 'off', false), set_config('jit', 'off', false)

-- name: backend
-- The server process of this connection.
SELECT pid, backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()

-- name: is_backend_there
-- $1, $2: the columns of `backend`.
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND backend_start::text = $2)

-- name: status_of_commit
SELECT pg_xact_status($1::text::xid8)

-- name: recalled
-- $1: ids. The effects of a commit whose reply was lost: the outbox row (NULL if relayed), the columns of a start, and
-- the result of a completion.
SELECT (SELECT max(o.id) FROM fairlead.outbox AS o WHERE o.job_id = j.id OR j.id = ANY (o.job_ids)),
       j.result_about, j.input, {context},
       {job_columns}
FROM fairlead.job AS j WHERE j.id = ANY ($1::text[])

-- name: runs
-- $1: ids.
SELECT id, run FROM fairlead.job WHERE id = ANY ($1::text[])

-- ---------------------------------------------------------------- the rules and the epochs

-- name: raise_epoch
-- $1: scope, $2: dispatcher server. Locks the row: it waits for running commits that start steps of this scope, and
-- later such commits wait for it.
INSERT INTO fairlead.epoch AS e (scope, number, server) VALUES ($1, 1, $2)
    ON CONFLICT (scope) DO UPDATE SET number = e.number + 1, server = excluded.server, rebuild_asked = false
    RETURNING number

-- name: leave_epochs
-- $1: scopes, sorted. Waits like `raise_epoch`. The column `server` is unchanged, because the queue was built on that
-- server.
INSERT INTO fairlead.epoch AS e (scope, number) SELECT scope, 1 FROM unnest($1::text[]) AS scope
    ON CONFLICT (scope) DO UPDATE SET number = e.number + 1

-- name: create_epochs
-- $1: scopes. Creates missing rows, so that they can be locked.
INSERT INTO fairlead.epoch (scope, number) SELECT scope, 0 FROM unnest($1::text[]) AS scope ON CONFLICT DO NOTHING

-- name: share_epochs
-- $1: scopes. Locks the epochs until the starts of this transaction are committed.
SELECT scope, number FROM fairlead.epoch WHERE scope = ANY ($1::text[]) ORDER BY scope FOR SHARE

-- name: declare
-- $1: the declaration in canonical form. The version is raised only if the declaration has changed.
UPDATE fairlead.rules SET version = version + 1, declared = $1 WHERE declared <> $1 RETURNING version

-- name: override_of
-- $1: service. Its current override.
SELECT slots, paused FROM fairlead.service_override WHERE service = $1

-- name: override
-- $1: service, $2: limit, $3: paused.
INSERT INTO fairlead.service_override (service, slots, paused) VALUES ($1, $2, $3)
    ON CONFLICT (service) DO UPDATE SET slots = excluded.slots, paused = excluded.paused

-- name: override_rate
-- $1: kind, $2: name, $3: region, $4: rate as JSON.
INSERT INTO fairlead.rate_override (kind, name, region, rate) VALUES ($1, $2, $3, $4)
    ON CONFLICT (kind, name, region) DO UPDATE SET rate = excluded.rate

-- name: lift_rate
-- $1: kind, $2: name, $3: region.
DELETE FROM fairlead.rate_override WHERE kind = $1 AND name = $2 AND region = $3

-- name: adapted_of
-- $1: service. Its automatic limit.
SELECT slots FROM fairlead.adaptive_limit WHERE service = $1

-- name: adapt
-- $1: service, $2: limit, $3: the best latency, $4: the history.
INSERT INTO fairlead.adaptive_limit (service, slots, best, history) VALUES ($1, $2, $3, $4)
    ON CONFLICT (service) DO UPDATE SET slots = excluded.slots, best = excluded.best, history = excluded.history

-- name: raise_version
UPDATE fairlead.rules SET version = version + 1 RETURNING version

-- name: lock_rules
-- Serialises declarations and run-time changes: each must see the effect of the previous one.
SELECT declared, version FROM fairlead.rules FOR UPDATE

-- name: share_rules
-- Locks the rules until this transaction ends.
SELECT version FROM fairlead.rules FOR SHARE

-- ---------------------------------------------------------------- submit

-- name: lock_users
-- $1: users with a limit. Keeps other processes from adding jobs of these users while their jobs are counted. Users
-- share 64 locks, so that a batch with many users does not fill the server's lock table. The locks are taken in sorted
-- order, to avoid deadlocks.
SELECT pg_advisory_xact_lock(1180781900, bucket) FROM (
    SELECT DISTINCT hashtext(user_id) & 63 AS bucket FROM unnest($1::text[]) AS user_id ORDER BY 1
) AS buckets

-- name: waiting_of_users
-- $1: users. The number of waiting jobs of each.
SELECT u.user_id, (
    SELECT count(*) FROM fairlead.job AS j WHERE j.user_id = u.user_id AND j.ended IS NULL AND j.status < 3
) FROM unnest($1::text[]) AS u (user_id)

-- name: known_keys
-- $1: users, $2: idempotency keys.
SELECT i.user_id, i.key, i.body_hash, i.job_id, j.seq
FROM unnest($1::text[], $2::text[]) AS g (user_id, key)
JOIN fairlead.idempotency AS i ON i.user_id = g.user_id AND i.key = g.key
LEFT JOIN fairlead.job AS j ON j.id = i.job_id

-- name: claim_keys
-- $1: users, $2: keys, $3: body hashes, $4: job ids. If another process is claiming one of the keys, waits for it and
-- omits that key.
INSERT INTO fairlead.idempotency (user_id, key, body_hash, job_id)
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])
    ON CONFLICT DO NOTHING RETURNING user_id, key

-- name: submit
-- Seqs are assigned in the order of the ids. $33: origin, $34: now (NULL: server time), $35 and $36: see `late`.
WITH inserted AS (
    {new_jobs}
    RETURNING j.seq, j.id, j.step, j.spec, j.priority,
              CASE j.status WHEN 1 THEN nextval('fairlead.outbox_id') END AS outbox_id
), outbox_rows AS (
    INSERT INTO fairlead.outbox (id, job_id, origin, written_at, service, band)
        SELECT j.outbox_id, j.id, $33::text, coalesce($34::bigint, (extract(epoch FROM now()) * 1000000)::bigint),
               {service}, j.priority
        FROM inserted AS j WHERE j.outbox_id IS NOT NULL
)
SELECT seq, outbox_id, {late} FROM inserted

-- name: submit_keyed
-- Like `submit`, for jobs that all have idempotency keys. Stores nothing if one of the keys is known. If another process
-- claims one of them at the same moment, waits for it and fails.
WITH keys AS (
    {new_keys}
    RETURNING job_id
), inserted AS (
    {new_jobs} WHERE EXISTS (SELECT FROM keys)
    RETURNING j.seq, j.id, j.step, j.spec, j.priority,
              CASE j.status WHEN 1 THEN nextval('fairlead.outbox_id') END AS outbox_id
), outbox_rows AS (
    INSERT INTO fairlead.outbox (id, job_id, origin, written_at, service, band)
        SELECT j.outbox_id, j.id, $33::text, coalesce($34::bigint, (extract(epoch FROM now()) * 1000000)::bigint),
               {service}, j.priority
        FROM inserted AS j WHERE j.outbox_id IS NOT NULL
)
SELECT seq, outbox_id, {late} FROM inserted

-- name: submit_together
-- Like `submit`, for jobs that enter the same lane: up to $37 jobs share an outbox row.
WITH inserted AS (
    {new_jobs}
    RETURNING j.seq
), outbox_rows AS (
    INSERT INTO fairlead.outbox (id, job_ids, origin, written_at, service, band)
        SELECT nextval('fairlead.outbox_id'), j.ids[first : first + $37::int - 1], $33::text,
               coalesce($34::bigint, (extract(epoch FROM now()) * 1000000)::bigint), {service}, $21::smallint
        FROM (SELECT string_to_array($2::text, $1::text) AS ids, $28::text AS spec, 0 AS step) AS j,
             generate_series(1, cardinality(j.ids), $37::int) AS first
    RETURNING id
)
SELECT (SELECT array_agg(seq ORDER BY seq) FROM inserted), (SELECT array_agg(id ORDER BY id) FROM outbox_rows),
    {late}

-- ---------------------------------------------------------------- start

-- name: start
-- $8: now. The caller has already left out the starts of other epochs.
UPDATE fairlead.job AS j SET {started_columns}
FROM unnest($1::text[], $2::text::int[], $3::text::int[], $4::text[], $5::text[], $6::text::bigint[],
            $7::text[]) WITH ORDINALITY
    AS g (job_id, step, run, lease, worker, timeout, region, n), (SELECT $8::bigint AS now) AS t
WHERE j.id = g.job_id AND j.status = 1 AND j.run = g.run AND j.step = g.step
RETURNING g.n, j.input, {context}, {job_columns}

-- name: start_single
-- $8: now (NULL: server time), $9: scopes, $10: the epochs of the leases. The epoch row of each start is locked before
-- its job row. A start that waits for a rebuild sees the raised epoch.
WITH shared AS MATERIALIZED (
    SELECT scope, number FROM fairlead.epoch WHERE scope IN (SELECT unnest($9::text[])) ORDER BY scope FOR SHARE
)
UPDATE fairlead.job AS j SET {started_columns}
FROM unnest($1::text[], $2::text::int[], $3::text::int[], $4::text[], $5::text[], $6::text::bigint[], $7::text[],
            $9::text[], $10::text::bigint[]) WITH ORDINALITY
    AS g (job_id, step, run, lease, worker, timeout, region, scope, epoch, n),
    (SELECT coalesce($8::bigint, (extract(epoch FROM now()) * 1000000)::bigint) AS now) AS t, shared
WHERE shared.scope = g.scope AND shared.number = g.epoch
  AND j.id = g.job_id AND j.status = 1 AND j.run = g.run AND j.step = g.step
RETURNING g.n, j.input, {context}, {job_columns}

-- name: submit_started
-- Like `submit_keyed`, for jobs that start in the same commit and therefore need no outbox row. $41: leases, $42:
-- workers, $43: timeouts, $44: scopes, $45: the epochs of the leases, all in the order of the jobs. Stores nothing if one
-- of the keys is known, or one of the epochs has been raised.
WITH shared AS MATERIALIZED (
    SELECT scope, number FROM fairlead.epoch WHERE scope IN (SELECT unnest($44::text[])) ORDER BY scope FOR SHARE
), keys AS (
    {new_keys} AND NOT EXISTS (
        SELECT FROM unnest($44::text[], $45::text::bigint[]) AS e (scope, number)
        WHERE NOT EXISTS (SELECT FROM shared WHERE shared.scope = e.scope AND shared.number = e.number)
    )
    RETURNING job_id
), t AS MATERIALIZED (
    -- The others of these parameters belong to outbox rows; every parameter must have a type.
    SELECT coalesce($34::bigint, (extract(epoch FROM now()) * 1000000)::bigint) AS now, $33::text, $35::text[], $36::bigint
), inserted AS (
    INSERT INTO fairlead.job AS j (
        {new_job_columns}, run, attempt, lease, worker, call_started_at, call_deadline, started_at
    )
        SELECT {new_job_values}, 1, 1, g.lease, g.worker, t.now, t.now + g.timeout, t.now
        FROM unnest({new_job_arrays}, $41::text[], $42::text[], $43::text::bigint[])
            AS g ({new_job_columns}, lease, worker, timeout), t
        WHERE EXISTS (SELECT FROM keys)
    RETURNING j.id, j.seq, j.call_started_at
)
SELECT id, seq, call_started_at FROM inserted

-- ---------------------------------------------------------------- move

-- name: complete
-- Moves that complete a job, which is how nearly every job ends. They write few columns, store the result in the job's
-- row, and insert the row of the call into the usage ledger.
WITH done AS (
UPDATE fairlead.job AS j SET
    status = 4, ended = 4, run = j.run + 1, step = g.step, attempt = 0, round = g.round,
    timer_at = NULL, waiting_since = NULL, finished_at = g.finished_at, retryable = NULL, error = NULL,
    last_progress_at = g.finished_at,
    lease = NULL, worker = NULL, call_started_at = NULL, call_deadline = NULL, call_region = NULL, progress = NULL,
    goes_back = NULL, result_about = g.about, result_data = g.data, result_metrics = g.metrics
FROM unnest($1::text[], $2::text::int[], $3::text::int[], $4::text::int[], $5::text::bigint[], $6::text[], $7::text[],
            $8::text[], $9::text::bigint[], $10::text::bigint[], $11::text::smallint[], $12::text::int[],
            $13::text::int[], $14::text[], $15::text[], $16::text[], $17::text[], $18::text[], $19::text::int[],
            $20::text::int[], $21::text::int[], $22::text::float8[], $23::text::smallint[], $24::text::bigint[])
    WITH ORDINALITY
    AS g (job_id, run, step, round, finished_at, about, data, metrics, waited, slot, outcome, of_step, attempt, service,
          region, plan, group_path, model, tokens_in, tokens_out, tokens_cached, units, ignored, price, n)
WHERE j.id = g.job_id AND j.run = g.run
RETURNING g.n, g.finished_at, j.id, g.run, j.user_id, j.feature_name, g.waited, g.slot, g.outcome, g.of_step, g.attempt,
          g.service, g.region, g.plan, g.group_path, g.model, g.tokens_in, g.tokens_out, g.tokens_cached, g.units,
          g.ignored, g.price
), ledger AS (
    INSERT INTO fairlead.usage (
        ended_at, job_id, run, user_id, feature_name, waited, slot, outcome, step, attempt, service, region,
        plan, group_path, model, tokens_in, tokens_out, tokens_cached, units, ignored, price
    )
    SELECT finished_at, id, run, user_id, feature_name, waited, slot, outcome, of_step, attempt, service, region,
           plan, group_path, model, tokens_in, tokens_out, tokens_cached, units, ignored, price
    FROM done WHERE outcome IS NOT NULL
)
SELECT n FROM done

-- name: move
-- Moves without an outbox row.
UPDATE fairlead.job AS j SET {moved_columns}
FROM {moves}
WHERE j.id = g.job_id AND j.run = g.run
RETURNING g.n, j.seq

-- name: move_with_outbox
-- Moves with an outbox row. $18: origin, $19: now.
WITH moved AS (
    UPDATE fairlead.job AS j SET {moved_columns}
    FROM {moves}
    WHERE j.id = g.job_id AND j.run = g.run
    RETURNING g.n, nextval('fairlead.outbox_id') AS outbox_id, {job_columns}
), outbox_rows AS (
    INSERT INTO fairlead.outbox (id, job_id, origin, written_at, service, band)
        SELECT j.outbox_id, j.id, $18::text, $19::bigint, {service}, j.priority FROM moved AS j
)
SELECT * FROM moved

-- name: spill
-- $1: ids. Copies the result of completed jobs that begin a new round from the job's row to `step_result`.
INSERT INTO fairlead.step_result (seq, step, round, service, data, metrics, finished_at, lease)
    SELECT seq, (about ->> 0)::int, (about ->> 2)::int, about ->> 1, result_data, result_metrics,
           (about ->> 3)::bigint, about ->> 4
    FROM (SELECT *, result_about::json AS about FROM fairlead.job) AS j
    WHERE id = ANY ($1::text[]) AND result_data IS NOT NULL
    ON CONFLICT DO NOTHING

-- name: unspill
-- $1: ids. Clears the result in the row, after `spill`.
UPDATE fairlead.job SET result_data = NULL, result_metrics = NULL
    WHERE id = ANY ($1::text[]) AND result_data IS NOT NULL

-- name: result
INSERT INTO fairlead.step_result (seq, step, round, service, data, metrics, finished_at, lease)
    SELECT * FROM unnest($1::text::bigint[], $2::text::int[], $3::text::int[], $4::text[], $5::text[], $6::text[],
                         $7::text::bigint[], $8::text[])

-- name: failed
INSERT INTO fairlead.attempt (seq, run, step, service, round, attempt, error, started_at, ended_at, worker, region)
    SELECT * FROM unnest($1::text::bigint[], $2::text::int[], $3::text::int[], $4::text[], $5::text::int[],
                         $6::text::int[], $7::text[], $8::text::bigint[],
                         $9::text::bigint[], $10::text[], $11::text[])

-- name: hold
INSERT INTO fairlead.hold (id, job_id, service, region, until, band)
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text::bigint[], $6::text::smallint[])

-- ---------------------------------------------------------------- sweeps

-- name: due
-- $1: now, $2: limit, $3: jobs that this batch already moves. Jobs whose timer has fired, earliest first, locked until
-- they are moved. Skips jobs that another process is moving.
SELECT {job_columns} FROM fairlead.job AS j
WHERE j.timer_at <= $1::bigint AND j.id <> ALL ($3::text[])
ORDER BY j.timer_at LIMIT $2::bigint FOR UPDATE SKIP LOCKED

-- name: promotable
-- $1: queued at or before, $2: limit, $3: jobs that this batch already moves, $4: band. Locks like `due`.
SELECT {job_columns} FROM fairlead.job AS j
WHERE j.ended IS NULL AND j.priority = $4::smallint AND j.queued_at <= $1::bigint AND j.status = 1
AND j.id <> ALL ($3::text[])
ORDER BY j.queued_at LIMIT $2::bigint FOR UPDATE SKIP LOCKED

-- ---------------------------------------------------------------- progress, delete, and the manager's housekeeping

-- name: progress
-- $4: now.
UPDATE fairlead.job AS j SET progress = g.progress, last_progress_at = $4::bigint
FROM unnest($1::text[], $2::text::int[], $3::text[]) WITH ORDINALITY AS g (job_id, run, progress, n)
WHERE j.id = g.job_id AND j.run = g.run
RETURNING g.n

-- name: prioritise
UPDATE fairlead.job AS j SET priority = g.priority, queued_at = coalesce(g.queued_at, j.queued_at),
    promoted_at = coalesce(g.promoted_at, j.promoted_at)
FROM unnest($1::text[], $2::text::int[], $3::text::smallint[], $4::text::bigint[], $5::text::bigint[]) WITH ORDINALITY
    AS g (job_id, run, priority, queued_at, promoted_at, n)
WHERE j.id = g.job_id AND j.run = g.run
RETURNING g.n

-- name: adopt
UPDATE fairlead.job AS j SET turn = g.process
FROM unnest($1::text[], $2::text::int[], $3::text[]) WITH ORDINALITY AS g (job_id, run, process, n)
WHERE j.id = g.job_id AND j.run = g.run AND j.turn IS NOT NULL
RETURNING g.n

-- name: delete
-- $1: ids. Deletes jobs with their results and attempts. Holds stay: the call may still be running.
WITH gone AS (
    DELETE FROM fairlead.job AS j WHERE j.id = ANY ($1::text[]) AND j.ended IS NOT NULL
    RETURNING j.seq, j.id, j.user_id, j.idempotency_key
), results AS (
    DELETE FROM fairlead.step_result AS r USING gone WHERE r.seq = gone.seq
), attempts AS (
    DELETE FROM fairlead.attempt AS a USING gone WHERE a.seq = gone.seq
), keys AS (
    DELETE FROM fairlead.idempotency AS i USING gone WHERE i.user_id = gone.user_id AND i.key = gone.idempotency_key
)
SELECT id FROM gone

-- name: relayed
-- $1: outbox ids.
DELETE FROM fairlead.outbox WHERE id = ANY ($1::text::bigint[])

-- name: relayed_single
-- Like `relayed`, but as a transaction of its own that does not wait for the disk. A row that reappears after a crash
-- is relayed again, which is harmless.
DELETE FROM fairlead.outbox AS o USING (SELECT set_config('synchronous_commit', 'off', true) AS setting) AS s
WHERE o.id = ANY ($1::text::bigint[]) AND s.setting IS NOT NULL

-- name: end_holds
-- $1: the time up to which holds end.
WITH ended AS (DELETE FROM fairlead.hold WHERE until <= $1::bigint RETURNING 1) SELECT count(*) FROM ended

-- name: prunable
-- $1: finished before, $2: failed before, $3: limit. Returns the ids of the jobs to pass to `delete`. Skips jobs that
-- another manager is pruning.
SELECT id FROM fairlead.job
WHERE (ended IN (4, 6) AND finished_at < $1::bigint) OR (ended = 5 AND finished_at < $2::bigint)
LIMIT $3::bigint FOR UPDATE SKIP LOCKED
