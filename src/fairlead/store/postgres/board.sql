-- What the dashboard keeps, one statement for each transition. What somebody else is deleting is left to them.

-- name: open_session
-- $1: hash, $2: key, $3: expires at, $4: now.
WITH expired AS (
    DELETE FROM fairlead.dashboard_session WHERE hash IN (
        SELECT hash FROM fairlead.dashboard_session WHERE expires_at <= $4::bigint FOR UPDATE SKIP LOCKED
    )
)
INSERT INTO fairlead.dashboard_session (hash, key_id, expires_at) VALUES ($1, $2, $3::bigint) ON CONFLICT DO NOTHING

-- name: close_session
-- $1: hash.
DELETE FROM fairlead.dashboard_session WHERE hash = $1

-- name: note_activity
-- $1: process, $2: minutes, $3: services, $4: what is said of each. The rows are this process's own.
INSERT INTO fairlead.activity AS a (minute, process, service, about)
    SELECT g.minute, $1, g.service, g.about FROM unnest($2::int[], $3::text[], $4::text[]) AS g (minute, service, about)
    ON CONFLICT (minute, process, service) DO UPDATE SET about = excluded.about

-- name: forget_activity
-- $1: the first minute that is kept. An array, made once, as in `prune_audit`.
DELETE FROM fairlead.activity WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM fairlead.activity WHERE minute < $1::int FOR UPDATE SKIP LOCKED
))
