-- The writes of batches of jobs, one statement each, because they are rare. The jobs of a batch are inserted like all
-- other jobs, by the statements in apply.sql.

-- name: create_batch
-- Returns no row if another process created a batch with this key at the same time.
INSERT INTO fairlead.job_batch (id, user_id, name, metadata, created_at, total, idempotency_key, body_hash,
                                webhook)
    VALUES ($1, $2, $3, $4, $5::bigint, $6::int, $7, $8, $9) ON CONFLICT DO NOTHING RETURNING 1

-- name: add_items
INSERT INTO fairlead.batch_item (batch_id, item, job_id, custom_id)
    SELECT * FROM unnest($1::text[], $2::int[], $3::text[], $4::text[])

-- name: lock_batch
-- $1: id. Taken before `settle_batch`, which must see the commit of a resume that held this lock.
SELECT 1 FROM fairlead.job_batch WHERE id = $1 FOR UPDATE

-- name: settle_batch
-- $1: id, $2: now, used if no job of the batch is left.
WITH found AS (
    SELECT j.status, count(*) AS n, max(j.finished_at) AS finished_at
    FROM fairlead.batch_item AS i JOIN fairlead.job AS j ON j.id = i.job_id WHERE i.batch_id = $1 GROUP BY j.status
)
UPDATE fairlead.job_batch SET
    finished_at = coalesce((SELECT max(finished_at) FROM found), $2::bigint),
    counts = coalesce((SELECT json_agg(json_build_array(status, n)) FROM found)::text, '[]')
WHERE id = $1 AND finished_at IS NULL AND NOT EXISTS (SELECT FROM found WHERE status < 4)
RETURNING 1

-- name: reopen_batches
-- $1: ids of jobs that begin a new round. Locks the batches even if they are not settled: if a concurrent transaction
-- settles one because it still sees these jobs as ended, this statement waits for it and then clears the counts.
UPDATE fairlead.job_batch SET finished_at = NULL, counts = NULL WHERE id = ANY (ARRAY(
    SELECT b.id FROM fairlead.job_batch AS b
    WHERE b.id IN (SELECT i.batch_id FROM fairlead.batch_item AS i WHERE i.job_id = ANY ($1::text[]))
    ORDER BY b.id FOR UPDATE
))

-- name: strike_counts
-- $1: ids of deleted jobs. Clears the stored counts of their batches. Locks like `reopen_batches`.
UPDATE fairlead.job_batch SET counts = NULL WHERE id = ANY (ARRAY(
    SELECT b.id FROM fairlead.job_batch AS b
    WHERE b.id IN (SELECT i.batch_id FROM fairlead.batch_item AS i WHERE i.job_id = ANY ($1::text[]))
    ORDER BY b.id FOR UPDATE
))

-- name: prune_batches
-- $1: finished before, $2: limit. Skips batches that another manager is pruning. Collects the ids into an
-- array first, like `prune_audit`.
WITH gone AS (
    DELETE FROM fairlead.job_batch WHERE id = ANY (ARRAY(
        SELECT id FROM fairlead.job_batch WHERE finished_at < $1::bigint
        ORDER BY finished_at LIMIT $2::bigint FOR UPDATE SKIP LOCKED
    )) RETURNING id
), items AS (
    DELETE FROM fairlead.batch_item AS i USING gone WHERE i.batch_id = gone.id
)
SELECT id FROM gone
