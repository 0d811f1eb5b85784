-- The writes of file batches. `use_files` and `release_files` of files.sql keep and release their input.

-- name: create_file_batch
-- $1: id, $2: user, $3: created_at, $4: data, $5: key. Waits for a transaction that stores a batch with the same key.
INSERT INTO fairlead.file_batch (id, user_id, version, created_at, data, request_key)
    VALUES ($1, $2, 0, $3::bigint, $4, $5)
    ON CONFLICT (user_id, request_key) WHERE request_key IS NOT NULL DO NOTHING
RETURNING 1

-- name: withdraw_file_batch
DELETE FROM fairlead.file_batch WHERE id = $1

-- name: change_file_batch
-- $1: id, $2: version, $3: ended_at, $4: data, $5: output files.
UPDATE fairlead.file_batch SET version = version + 1, ended_at = $3::bigint, data = $4
WHERE id = $1 AND version = $2::bigint
AND (SELECT count(*) FROM fairlead.file WHERE id = ANY ($5::text[]) AND state = 1) = cardinality($5::text[])
RETURNING 1

-- name: record_file_batch_event
-- $1: id, $2: now, $3: about.
INSERT INTO fairlead.webhook_delivery
    (id, event, receiver, user_id, created_at, batch_id, endpoint_id, next_at, about)
    SELECT 'msg_' || b.id || '_' || p.id, 'batch.ended', p.id, b.user_id, $2::bigint, b.id, p.id, $2::bigint, $3::text
    FROM fairlead.file_batch AS b JOIN fairlead.webhook_endpoint AS p ON p.user_id IS NULL OR p.user_id = b.user_id
    WHERE b.id = $1 AND p.url IS NOT NULL AND p.disabled_at IS NULL AND p.events::jsonb ? 'batch.ended'
    ON CONFLICT DO NOTHING

-- name: prune_file_batches
DELETE FROM fairlead.file_batch WHERE id IN (
    SELECT id FROM fairlead.file_batch WHERE ended_at < $1::bigint ORDER BY ended_at LIMIT $2::bigint
)
RETURNING 1
