-- The writes. A commit is one transaction: `begin`, then one statement per kind of transition that is in the batch,
-- each for all transitions of its kind, given as arrays.
--
-- Every statement goes from its arrays to the rows by an index, one after the other, and the arrays are sorted by job
-- id: so all processes lock the rows of a kind in the same order, and the kinds one after the other. What is left of
-- deadlocks (two processes with different moves of the same two jobs) the journal tries again.
-- `begin` holds the planner to that plan. It would not keep to it by itself: the plan of a table that was small a minute
-- ago is a scan of the whole of it.

-- name: begin
-- The transaction's number, by which a lost COMMIT is found again, and the moment that is stored.
SELECT pg_current_xact_id()::text, (extract(epoch FROM now()) * 1000000)::bigint,
       set_config('lock_timeout', $1, true), set_config('plan_cache_mode', 'force_generic_plan', true),
       set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
       set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true)

-- name: hold_to_plans
-- The same for a session of its own: its statements may then be transactions by themselves.
SELECT set_config('lock_timeout', $1, false), set_config('plan_cache_mode', 'force_generic_plan', false),
       set_config('enable_seqscan', 'off', false), set_config('enable_hashjoin', 'off', false),
       set_config('enable_mergejoin', 'off', false), set_config('jit', 'off', false)

-- name: backend
-- Who answers on this connection.
SELECT pid, backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()

-- name: is_backend_there
-- $1, $2: as told by `backend`.
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND backend_start::text = $2)

-- name: status_of_commit
SELECT pg_xact_status($1::text::xid8)

-- name: recalled
-- $1: ids. What a commit whose reply was lost may have left: the outbox row (NULL if it is relayed), what a start
-- returns, and what a completion wrote.
SELECT (SELECT max(o.id) FROM fairlead.outbox AS o WHERE o.job_id = j.id OR j.id = ANY (o.job_ids)),
       j.result_about, j.input, {context},
       {job_columns}
FROM fairlead.job AS j WHERE j.id = ANY ($1::text[])

-- name: runs
-- $1: ids.
SELECT id, run FROM fairlead.job WHERE id = ANY ($1::text[])

-- ---------------------------------------------------------------- the rules and the epochs

-- name: raise_epoch
-- $1: scope, $2: the dispatcher's server. Locks the row, so it waits for every commit that started steps of this scope,
-- and those that follow wait for it.
INSERT INTO fairlead.epoch AS e (scope, number, server) VALUES ($1, 1, $2)
    ON CONFLICT (scope) DO UPDATE SET number = e.number + 1, server = excluded.server, rebuild_asked = false
    RETURNING number

-- name: know_scopes
-- $1: scopes. A row that is not there cannot be locked.
INSERT INTO fairlead.epoch (scope, number) SELECT scope, 0 FROM unnest($1::text[]) AS scope ON CONFLICT DO NOTHING

-- name: share_epochs
-- $1: scopes. Nobody raises these until the starts of this commit are in.
SELECT scope, number FROM fairlead.epoch WHERE scope = ANY ($1::text[]) ORDER BY scope FOR SHARE

-- name: declare
-- $1: the declaration in its one canonical spelling, so that the version rises only when something changed.
UPDATE fairlead.rules SET version = version + 1, declared = $1 WHERE declared <> $1

-- name: override_of
-- $1: service. What is in force for it.
SELECT slots, paused FROM fairlead.service_override WHERE service = $1

-- name: override
-- $1: service, $2: limit, $3: paused.
INSERT INTO fairlead.service_override VALUES ($1, $2, $3)
    ON CONFLICT (service) DO UPDATE SET slots = excluded.slots, paused = excluded.paused

-- name: adapted_of
-- $1: service. Where its limit is.
SELECT slots FROM fairlead.adaptive_limit WHERE service = $1

-- name: adapt
-- $1: service, $2: limit, $3: the best latency, $4: the history.
INSERT INTO fairlead.adaptive_limit (service, slots, best, history) VALUES ($1, $2, $3, $4)
    ON CONFLICT (service) DO UPDATE SET slots = excluded.slots, best = excluded.best, history = excluded.history

-- name: raise_version
UPDATE fairlead.rules SET version = version + 1 RETURNING version

-- name: lock_rules
-- Declarations and what changes them at run time come one after the other: each must see what the one before it did.
SELECT declared FROM fairlead.rules FOR UPDATE

-- ---------------------------------------------------------------- submit

-- name: lock_users
-- $1: users with a cap. Who counts a user's waiting jobs keeps others from adding to them meanwhile. The users share 64
-- locks, so that a batch of many users does not fill the server's table of locks. Sorted, as all locks are.
SELECT pg_advisory_xact_lock(1180781900, bucket) FROM (
    SELECT DISTINCT hashtext(user_id) & 63 AS bucket FROM unnest($1::text[]) AS user_id ORDER BY 1
) AS buckets

-- name: waiting_of_users
-- $1: users. How many jobs of each wait.
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
-- $1: users, $2: keys, $3: body hashes, $4: job ids. Waits for another process that is claiming one of them, and then
-- leaves that one out.
INSERT INTO fairlead.idempotency (user_id, key, body_hash, job_id)
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])
    ON CONFLICT DO NOTHING RETURNING user_id, key

-- name: submit
-- Numbers are given in the order of the ids. $33: this process, $34: now, or the server's.
WITH inserted AS (
    {new_jobs}
    RETURNING j.seq, j.id, j.step, j.spec, j.priority,
              CASE j.status WHEN 1 THEN nextval('fairlead.outbox_id') END AS outbox_id
), told AS (
    INSERT INTO fairlead.outbox (id, job_id, origin, written_at, service, band)
        SELECT j.outbox_id, j.id, $33::text, coalesce($34::bigint, (extract(epoch FROM now()) * 1000000)::bigint),
               {service}, j.priority
        FROM inserted AS j WHERE j.outbox_id IS NOT NULL
)
SELECT seq, outbox_id FROM inserted

-- name: submit_together
-- As `submit`, of jobs that all enter one lane: so many of them, $35, share a row of the outbox.
WITH inserted AS (
    {new_jobs}
    RETURNING j.seq
), told AS (
    INSERT INTO fairlead.outbox (id, job_ids, origin, written_at, service, band)
        SELECT nextval('fairlead.outbox_id'), j.ids[first : first + $35::int - 1], $33::text,
               coalesce($34::bigint, (extract(epoch FROM now()) * 1000000)::bigint), {service}, $21::smallint
        FROM (SELECT string_to_array($2::text, $1::text) AS ids, $28::text AS spec, 0 AS step) AS j,
             generate_series(1, cardinality(j.ids), $35::int) AS first
    RETURNING id
)
SELECT (SELECT array_agg(seq ORDER BY seq) FROM inserted), (SELECT array_agg(id ORDER BY id) FROM told)

-- ---------------------------------------------------------------- start

-- name: start
-- $8: now. Those of another epoch have been left out.
UPDATE fairlead.job AS j SET {started_columns}
FROM unnest($1::text[], $2::text::int[], $3::text::int[], $4::text[], $5::text[], $6::text::bigint[],
            $7::text[]) WITH ORDINALITY
    AS g (job_id, step, run, lease, worker, timeout, region, n), (SELECT $8::bigint AS now) AS t
WHERE j.id = g.job_id AND j.status = 1 AND j.run = g.run AND j.step = g.step
RETURNING g.n, j.input, {context}, {job_columns}

-- name: start_express
-- $8: now, or the server's; $9: scopes, $10: their epochs as the leases have them. The epochs' rows are locked before a
-- job's row is reached: each is joined to its own. Who has to wait for a rebuild to raise one sees the raised one.
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

-- ---------------------------------------------------------------- move

-- name: complete
-- The last step is done: nearly every job ends so, and it needs few of a move's columns. The result goes into the row.
UPDATE fairlead.job AS j SET
    status = 4, ended = 4, run = j.run + 1, step = g.step, attempt = 0, round = g.round,
    timer_at = NULL, waiting_since = NULL, finished_at = g.finished_at, retryable = NULL, error = NULL,
    last_progress_at = g.finished_at,
    lease = NULL, worker = NULL, call_started_at = NULL, call_deadline = NULL, call_region = NULL, progress = NULL,
    goes_back = NULL, result_about = g.about, result_data = g.data, result_metrics = g.metrics
FROM unnest($1::text[], $2::text::int[], $3::text::int[], $4::text::int[], $5::text::bigint[], $6::text[], $7::text[],
            $8::text[]) WITH ORDINALITY
    AS g (job_id, run, step, round, finished_at, about, data, metrics, n)
WHERE j.id = g.job_id AND j.run = g.run
RETURNING g.n

-- name: move
-- Moves that the line need not hear of.
UPDATE fairlead.job AS j SET {moved_columns}
FROM {moves}
WHERE j.id = g.job_id AND j.run = g.run
RETURNING g.n, j.seq

-- name: move_and_tell
-- $18: this process, $19: now.
WITH moved AS (
    UPDATE fairlead.job AS j SET {moved_columns}
    FROM {moves}
    WHERE j.id = g.job_id AND j.run = g.run
    RETURNING g.n, nextval('fairlead.outbox_id') AS outbox_id, {job_columns}
), told AS (
    INSERT INTO fairlead.outbox (id, job_id, origin, written_at, service, band)
        SELECT j.outbox_id, j.id, $18::text, $19::bigint, {service}, j.priority FROM moved AS j
)
SELECT * FROM moved

-- name: spill
-- $1: ids. Completed jobs that are about to begin a new round: the result in their row makes room for the next one.
INSERT INTO fairlead.step_result (seq, step, round, service, data, metrics, finished_at, lease)
    SELECT seq, (about ->> 0)::int, (about ->> 2)::int, about ->> 1, result_data, result_metrics,
           (about ->> 3)::bigint, about ->> 4
    FROM (SELECT *, result_about::json AS about FROM fairlead.job) AS j
    WHERE id = ANY ($1::text[]) AND result_data IS NOT NULL
    ON CONFLICT DO NOTHING

-- name: unspill
-- $1: ids, after `spill`.
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
-- $1: now, $2: limit, $3: jobs that this batch moves already. Those whose timer has rung, earliest first, locked until
-- they are moved. One that another process is moving is passed over and never waited for: it is in good hands.
SELECT {job_columns} FROM fairlead.job AS j
WHERE j.timer_at <= $1::bigint AND j.id <> ALL ($3::text[])
ORDER BY j.timer_at LIMIT $2::bigint FOR UPDATE SKIP LOCKED

-- name: promotable
-- $1: queued up to here, $2: limit, $3: jobs that this batch moves already, $4: band. As `due`.
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
-- $1: ids. A job and everything kept beside it. A hold stays: its call may still be computing.
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

-- name: relayed_express
-- The same as a transaction of its own, for which nobody waits: a row that comes back after a crash is relayed again.
DELETE FROM fairlead.outbox AS o USING (SELECT set_config('synchronous_commit', 'off', true) AS said) AS s
WHERE o.id = ANY ($1::text::bigint[]) AND s.said IS NOT NULL

-- name: end_holds
-- $1: the moment up to which holds end.
WITH ended AS (DELETE FROM fairlead.hold WHERE until <= $1::bigint RETURNING 1) SELECT count(*) FROM ended

-- name: prunable
-- $1: finished before, $2: failed before, $3: limit; the ids, for `delete`. Another manager that prunes at the same
-- moment takes others instead of waiting for these.
SELECT id FROM fairlead.job
WHERE (ended IN (4, 6) AND finished_at < $1::bigint) OR (ended = 5 AND finished_at < $2::bigint)
LIMIT $3::bigint FOR UPDATE SKIP LOCKED
