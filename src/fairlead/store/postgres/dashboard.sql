-- The writes of the dashboard, one statement each. Statements that delete old rows skip rows that another process is
-- deleting.

-- name: open_session
-- $1: hash, $2: key, $3: expires at, $4: now, $5: how many older sessions of this key to keep, $6: of all keys.
-- Collects the rows into an array first, like `prune_audit`.
WITH gone AS (
    DELETE FROM fairlead.dashboard_session WHERE hash = ANY (ARRAY(
        SELECT hash FROM fairlead.dashboard_session WHERE hash IN (
            SELECT hash FROM fairlead.dashboard_session WHERE expires_at <= $4::bigint
            UNION ALL
            (SELECT hash FROM fairlead.dashboard_session WHERE key_id = $2
                ORDER BY expires_at DESC, hash OFFSET $5::bigint)
            UNION ALL
            (SELECT hash FROM fairlead.dashboard_session ORDER BY expires_at DESC, hash OFFSET $6::bigint)
        ) FOR UPDATE SKIP LOCKED
    ))
)
INSERT INTO fairlead.dashboard_session (hash, key_id, expires_at) VALUES ($1, $2, $3::bigint) ON CONFLICT DO NOTHING

-- name: close_session
-- $1: hash.
DELETE FROM fairlead.dashboard_session WHERE hash = $1

-- name: record_activity
-- $1: process, $2: minutes, $3: services, $4: JSON of each. Each process writes only its own rows.
INSERT INTO fairlead.activity AS a (minute, process, service, about)
    SELECT g.minute, $1, g.service, g.about FROM unnest($2::int[], $3::text[], $4::text[]) AS g (minute, service, about)
    ON CONFLICT (minute, process, service) DO UPDATE SET about = excluded.about

-- name: prune_activity
-- $1: the first minute to keep. Collects the rows into an array first, like `prune_audit`.
DELETE FROM fairlead.activity WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM fairlead.activity WHERE minute < $1::int FOR UPDATE SKIP LOCKED
))
