-- The statements of budgets (docs/adr/0040). The rows of counters are locked by `lock_counters`, in the order of their
-- keys, before the rows of jobs.

-- name: lock_counters
-- $1: budgets, $2: subjects, $3: starts of their windows, sorted. Creates missing counters, moves all to their window
-- unless their own is later, and locks them until the end of the transaction.
WITH locked AS (
    INSERT INTO fairlead.budget_counter AS c (budget, subject, window_start)
        SELECT * FROM unnest($1::text[], $2::text[], $3::text::bigint[])
        ON CONFLICT (budget, subject) DO UPDATE SET
            window_start = greatest(c.window_start, excluded.window_start),
            used = CASE WHEN excluded.window_start > c.window_start THEN 0 ELSE c.used END,
            calls = CASE WHEN excluded.window_start > c.window_start THEN 0 ELSE c.calls END,
            mean = CASE WHEN excluded.window_start > c.window_start AND c.calls > 0 THEN c.used / c.calls
                   ELSE c.mean END,
            warned = CASE WHEN excluded.window_start > c.window_start THEN 0 ELSE c.warned END
    RETURNING c.*
)
SELECT k.budget, k.subject, k.window_start, k.used, k.reserved, k.calls, k.mean, k.warned, (
    SELECT o.amount FROM fairlead.budget_override AS o WHERE o.budget = k.budget AND o.subject IN (k.subject, '')
    ORDER BY o.subject DESC LIMIT 1
), 0 FROM locked AS k

-- name: jobs_to_start
-- $1: ids.
SELECT {job_columns} FROM fairlead.job AS j WHERE j.id = ANY ($1::text[])

-- name: lock_jobs
-- $1: ids. Locks these jobs in the order of their ids, like every other statement.
SELECT FROM fairlead.job AS j WHERE j.id = ANY ($1::text[]) ORDER BY j.id FOR UPDATE

-- name: due_calls
-- $1: now, $2: limit. Jobs with a call whose deadline has passed; not locked.
SELECT {job_columns} FROM fairlead.job AS j
WHERE j.timer_at <= $1::bigint AND j.status = 3 ORDER BY j.timer_at LIMIT $2::bigint

-- name: reserve
-- $1: job ids, $2: runs, $3: budgets, $4: subjects, $5: amounts.
WITH reserved AS (
    INSERT INTO fairlead.budget_reservation AS r (job_id, run, budget, subject, amount)
        SELECT * FROM unnest($1::text[], $2::text::int[], $3::text[], $4::text[], $5::text::bigint[])
        ON CONFLICT (job_id, budget) DO UPDATE SET run = excluded.run, amount = r.amount + excluded.amount
)
UPDATE fairlead.budget_counter AS c SET reserved = c.reserved + g.amount
FROM (
    SELECT budget, subject, sum(amount)::bigint AS amount
    FROM unnest($3::text[], $4::text[], $5::text::bigint[]) AS g (budget, subject, amount) GROUP BY 1, 2
) AS g
WHERE c.budget = g.budget AND c.subject = g.subject

-- name: charge
-- $1: ids of moved jobs. $2: budgets, $3: subjects, $4: amounts that calls of these jobs used. Frees what the jobs had
-- reserved, and ends their holds.
WITH freed AS (
    DELETE FROM fairlead.budget_reservation AS r WHERE r.job_id = ANY ($1::text[])
    RETURNING r.budget, r.subject, r.amount
), ended AS (
    DELETE FROM fairlead.budget_hold AS h WHERE h.job_id = ANY ($1::text[])
)
UPDATE fairlead.budget_counter AS c
SET used = c.used + g.used, calls = c.calls + g.calls, reserved = c.reserved - g.freed
FROM (
    SELECT budget, subject, sum(used)::bigint AS used, sum(calls)::bigint AS calls, sum(freed)::bigint AS freed FROM (
        SELECT budget, subject, used, 1 AS calls, 0 AS freed
        FROM unnest($2::text[], $3::text[], $4::text::bigint[]) AS u (budget, subject, used)
        UNION ALL
        SELECT budget, subject, 0, 0, amount FROM freed
    ) AS both_sides GROUP BY budget, subject
) AS g
WHERE c.budget = g.budget AND c.subject = g.subject

-- name: waiting_of_user
-- $1: user, $2: services or NULL, $3: ids to leave out, $4: limit, $5: NULL, or the band whose jobs are left out, like
-- promoted ones. Locked like those of a sweep.
SELECT {job_columns} FROM fairlead.job AS j
WHERE j.user_id = $1 AND j.ended IS NULL AND j.status = 1 AND j.turn IS NULL AND j.id <> ALL ($3::text[])
AND ($5::smallint IS NULL OR (j.priority <> $5::smallint AND j.promoted_at IS NULL))
AND ($2::text[] IS NULL OR {service} = ANY ($2::text[]))
LIMIT $4::int FOR UPDATE SKIP LOCKED

-- name: hold_jobs
-- $1: job ids, $2: runs, $3: budgets, $4: subjects, $5: seqs.
INSERT INTO fairlead.budget_hold (job_id, run, budget, subject, seq)
    SELECT * FROM unnest($1::text[], $2::text::int[], $3::text[], $4::text[], $5::text::bigint[])
    ON CONFLICT (job_id) DO UPDATE SET run = excluded.run, budget = excluded.budget, subject = excluded.subject

-- name: set_budget
INSERT INTO fairlead.budget_override (budget, subject, amount) VALUES ($1, $2, $3::bigint)
    ON CONFLICT (budget, subject) DO UPDATE SET amount = excluded.amount

-- name: lift_budget
DELETE FROM fairlead.budget_override WHERE budget = $1 AND subject = $2

-- name: release_held
-- $1: budget, $2: subject, $3: limit, $4: now. The timers loop moves the jobs. Jobs that another process is moving are
-- left alone, and stay held.
WITH oldest AS (
    SELECT job_id, run FROM fairlead.budget_hold WHERE budget = $1 AND subject = $2
    ORDER BY seq LIMIT $3::int FOR UPDATE SKIP LOCKED
), locked AS (
    SELECT j.id FROM oldest AS o JOIN fairlead.job AS j ON j.id = o.job_id AND j.run = o.run
    ORDER BY j.id FOR UPDATE OF j SKIP LOCKED
), fired AS (
    UPDATE fairlead.job AS j SET timer_at = $4::bigint FROM locked
    WHERE j.id = locked.id AND j.timer_at > $4::bigint
), ended AS (
    DELETE FROM fairlead.budget_hold AS h USING oldest AS o
    WHERE h.job_id = o.job_id AND (o.job_id IN (SELECT id FROM locked) OR NOT EXISTS (
        SELECT FROM fairlead.job AS j WHERE j.id = o.job_id AND j.run = o.run
    ))
    RETURNING 1
)
SELECT count(*) FROM ended

-- name: sweep_reservations
-- Frees what calls had reserved that are not under way.
WITH freed AS (
    DELETE FROM fairlead.budget_reservation AS r
    WHERE NOT EXISTS (SELECT FROM fairlead.job AS j WHERE j.id = r.job_id AND j.run = r.run AND j.status = 3)
    RETURNING r.budget, r.subject, r.amount
), corrected AS (
    UPDATE fairlead.budget_counter AS c SET reserved = c.reserved - g.amount
    FROM (SELECT budget, subject, sum(amount)::bigint AS amount FROM freed GROUP BY 1, 2) AS g
    WHERE c.budget = g.budget AND c.subject = g.subject
)
SELECT count(*) FROM freed

-- name: sweep_holds
DELETE FROM fairlead.budget_hold AS h
    WHERE NOT EXISTS (SELECT FROM fairlead.job AS j WHERE j.id = h.job_id AND j.run = h.run)

-- name: sweep_counters
-- $1: before.
DELETE FROM fairlead.budget_counter WHERE window_start < $1::bigint AND reserved = 0

-- name: warn_budget
-- $1: budget, $2: subject, $3: start of the window, $4: warned.
UPDATE fairlead.budget_counter SET warned = $4::smallint
    WHERE budget = $1 AND subject = $2 AND window_start = $3::bigint AND warned < $4::smallint
    RETURNING 1

-- name: record_threshold
-- $1: id of the event, $2: user or '', $3: about, $4: now.
INSERT INTO fairlead.webhook_delivery (id, event, receiver, user_id, created_at, endpoint_id, next_at, about)
    SELECT 'msg_' || $1::text || '_' || p.id, 'budget.threshold', p.id, $2::text, $4::bigint, p.id, $4::bigint, $3::text
    FROM fairlead.webhook_endpoint AS p
    WHERE (p.user_id IS NULL OR p.user_id = $2::text) AND p.url IS NOT NULL AND p.disabled_at IS NULL
    AND p.events::jsonb ? 'budget.threshold'
    ON CONFLICT DO NOTHING
