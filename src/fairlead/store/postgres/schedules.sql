-- The writes of schedules.

-- name: create_schedule
INSERT INTO fairlead.schedule AS s
    (id, user_id, name, declared, spec, timing, secret, created_at, revision, next_at, last_at, waiting_at, paused_at)
    VALUES ($1, $2, $3, $4::bool, $5, $6, $7, $8::bigint, 1, $9::bigint, $10::bigint, $11::bigint, $12::bigint)
    ON CONFLICT DO NOTHING RETURNING {schedule_columns}

-- name: change_schedule
-- $13: the revision to replace.
UPDATE fairlead.schedule AS s SET
    user_id = $2, name = $3, declared = $4::bool, spec = $5, timing = $6, secret = $7, created_at = $8::bigint,
    revision = s.revision + 1, next_at = $9::bigint, last_at = $10::bigint, waiting_at = $11::bigint,
    paused_at = $12::bigint
    WHERE s.id = $1 AND s.revision = $13::bigint RETURNING {schedule_columns}

-- name: declare_schedule
-- One schedule of the configuration or the code. $7: secret, $8: now, $9: the next time if its timing is new.
INSERT INTO fairlead.schedule AS s (id, user_id, name, declared, spec, timing, secret, created_at, revision, next_at)
    VALUES ($1, $2, $3, true, $4, $5, $6, $7::bigint, 1, $8::bigint)
    ON CONFLICT (id) DO UPDATE SET
        user_id = excluded.user_id, name = excluded.name, declared = true, spec = excluded.spec,
        timing = excluded.timing, revision = s.revision + 1,
        next_at = CASE WHEN s.timing = excluded.timing THEN s.next_at ELSE excluded.next_at END
    WHERE s.user_id <> excluded.user_id OR NOT s.declared OR s.spec <> excluded.spec OR s.timing <> excluded.timing

-- name: undeclare_schedules
-- $1: the ids that are declared.
DELETE FROM fairlead.schedule WHERE declared AND id <> ALL ($1::text[]) RETURNING id

-- name: delete_schedule
DELETE FROM fairlead.schedule WHERE id = $1 RETURNING id

-- name: delete_schedule_runs
-- $1: schedules.
DELETE FROM fairlead.schedule_run WHERE schedule_id = ANY ($1::text[])

-- name: lock_schedule
-- $1: id, $2: revision or NULL, $3: now.
SELECT id FROM fairlead.schedule
WHERE id = $1 AND ($2::bigint IS NULL OR (
    revision = $2 AND paused_at IS NULL AND (next_at <= $3::bigint OR waiting_at IS NOT NULL)
)) FOR UPDATE

-- name: has_job
SELECT id FROM fairlead.job WHERE id = $1

-- name: move_schedule
UPDATE fairlead.schedule SET revision = revision + 1, next_at = $2::bigint, last_at = $3::bigint, waiting_at = $4::bigint
    WHERE id = $1

-- name: record_runs
-- $1: schedule, $2 to $7: the columns of `run_row`.
INSERT INTO fairlead.schedule_run (schedule_id, outcome, at, due_at, job_id, count, detail)
    SELECT $1, g.outcome, g.at, g.due_at, g.job_id, g.count, g.detail
    FROM unnest($2::text::smallint[], $3::text::bigint[], $4::text::bigint[], $5::text[], $6::text::int[], $7::text[])
        AS g (outcome, at, due_at, job_id, count, detail)

-- name: trim_runs
-- $1: schedule, $2: runs to keep.
DELETE FROM fairlead.schedule_run WHERE schedule_id = $1 AND seq <= (
    SELECT seq FROM fairlead.schedule_run WHERE schedule_id = $1 ORDER BY seq DESC LIMIT 1 OFFSET $2::bigint
)
