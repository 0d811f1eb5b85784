-- The writes of operators. Each write is one statement, because these writes are rare and each must see the effect of
-- the previous one. A statement that changes nothing returns no row; the write is then refused.

-- name: request_rebuild
-- $1: scope. A scope that was never built has no row, or a row with number 0.
UPDATE fairlead.epoch SET rebuild_asked = true WHERE scope = $1 AND number > 0 RETURNING 1

-- name: create_key
INSERT INTO fairlead.api_key (id, role, user_id, name, hash, created_at, revoked_at)
    VALUES ($1, $2, $3, $4, $5, $6::bigint, $7::bigint) ON CONFLICT DO NOTHING RETURNING 1

-- name: revoke_key
-- $1: id, $2: now.
WITH tickets AS (DELETE FROM fairlead.ticket WHERE key_id = $1),
     sessions AS (DELETE FROM fairlead.dashboard_session WHERE key_id = $1)
UPDATE fairlead.api_key SET revoked_at = $2::bigint WHERE id = $1 AND revoked_at IS NULL RETURNING 1

-- name: issue_ticket
-- $1: hash, $2: key, $3: expires at, $4: now. Skips expired tickets that another process is deleting.
WITH expired AS (
    DELETE FROM fairlead.ticket WHERE hash IN (
        SELECT hash FROM fairlead.ticket WHERE expires_at <= $4::bigint FOR UPDATE SKIP LOCKED
    )
)
INSERT INTO fairlead.ticket (hash, key_id, expires_at) VALUES ($1, $2, $3::bigint) ON CONFLICT DO NOTHING

-- name: use_ticket
-- $1: hash, $2: now. A concurrent second use waits for the first and then finds no row.
WITH used AS (DELETE FROM fairlead.ticket WHERE hash = $1 RETURNING key_id, expires_at)
SELECT key_id FROM used WHERE expires_at > $2::bigint

-- name: audit_action
INSERT INTO fairlead.audit (id, at, who, action, target, details, outcome)
    VALUES ($1, $2::bigint, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING

-- name: audit_outcome
-- $1: id, $2: outcome.
UPDATE fairlead.audit SET outcome = $2 WHERE id = $1 RETURNING 1

-- name: register
-- $1: name, $2: JSON, $3: now.
INSERT INTO fairlead.process AS p (name, about, seen_at) VALUES ($1, $2, $3::bigint)
    ON CONFLICT (name) DO UPDATE SET about = excluded.about, seen_at = excluded.seen_at
    RETURNING p.drain_asked

-- name: deregister
-- $1: name.
DELETE FROM fairlead.process WHERE name = $1

-- name: ask_drain
-- $1: name, $2: on.
UPDATE fairlead.process SET drain_asked = $2::boolean WHERE name = $1 RETURNING 1

-- name: prune_audit
-- $1: before, $2: limit. Skips rows that another manager is pruning. The ids are collected into an array first.
-- Otherwise the plan may evaluate the subquery once per row, with a different result each time.
DELETE FROM fairlead.audit WHERE id = ANY (ARRAY(
    SELECT id FROM fairlead.audit WHERE at < $1::bigint ORDER BY at LIMIT $2::bigint FOR UPDATE SKIP LOCKED
)) RETURNING 1

-- name: prune_processes
-- $1: not seen since.
DELETE FROM fairlead.process WHERE name = ANY (ARRAY(
    SELECT name FROM fairlead.process WHERE seen_at < $1::bigint FOR UPDATE SKIP LOCKED
))

-- name: change_reader
-- $1: user, $2: idempotency key, $3: the former reader, $4: the reader.
UPDATE fairlead.idempotency SET body_hash = $4 WHERE user_id = $1 AND key = $2 AND body_hash = $3 RETURNING 1

-- name: erase
-- $1: jobs, $2: the input of an erased job, $3: the message of its errors. Of an error, only what Fairlead writes itself is
-- kept. Skips jobs that another process is changing.
WITH erased AS MATERIALIZED (
    SELECT id, seq, user_id, idempotency_key FROM fairlead.job WHERE id = ANY ($1::text[]) AND ended IS NOT NULL
    ORDER BY id FOR UPDATE SKIP LOCKED
), keys AS (
    DELETE FROM fairlead.idempotency AS i USING erased AS e
    WHERE i.user_id = e.user_id AND i.key = e.idempotency_key
), results AS (
    UPDATE fairlead.step_result AS r SET data = 'null', metrics = (metrics::jsonb - 'output_chunks' - 'output_run')::text
    FROM erased AS e WHERE r.seq = e.seq
), attempts AS (
    UPDATE fairlead.attempt AS a SET error = jsonb_strip_nulls(jsonb_build_object(
        'code', error::jsonb -> 'code', 'message', $3::text, 'http_status', error::jsonb -> 'http_status'
    ))::text FROM erased AS e WHERE a.seq = e.seq
)
UPDATE fairlead.job AS j SET
    idempotency_key = NULL, progress = NULL, goes_back = NULL, input = $2,
    retryable = CASE WHEN j.status = 5 THEN false END,
    result_data = CASE WHEN result_data IS NOT NULL THEN 'null' END,
    result_metrics = (result_metrics::jsonb - 'output_chunks' - 'output_run')::text,
    error = CASE WHEN error IS NOT NULL THEN jsonb_strip_nulls(jsonb_build_object(
        'code', error::jsonb -> 'code', 'message', $3::text, 'http_status', error::jsonb -> 'http_status',
        'attempts', error::jsonb -> 'attempts', 'reason', error::jsonb -> 'reason'
    ))::text END
FROM erased AS e WHERE j.id = e.id RETURNING j.id
