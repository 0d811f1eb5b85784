-- The writes of files, one statement each, because they are rare. Rows are locked in this order: file, then artifact. Two
-- statements that must see each other's effects are two statements here: each has a snapshot of its own.

-- name: use_files
-- $1: job ids, $2: file ids, pairwise. Returns how many of the files exist. The lock on the files makes a sweep wait, or
-- skip them.
WITH found AS (
    SELECT id FROM fairlead.file WHERE id = ANY ($2::text[]) AND state = 1 ORDER BY id FOR UPDATE
), used AS (
    INSERT INTO fairlead.file_use (job_id, file_id)
        SELECT u.job_id, u.file_id FROM unnest($1::text[], $2::text[]) AS u (job_id, file_id)
        JOIN found ON found.id = u.file_id ON CONFLICT DO NOTHING
), kept AS (
    UPDATE fairlead.file AS f SET sweep_at = NULL FROM found WHERE f.id = found.id AND f.sweep_at IS NOT NULL
)
SELECT count(*) FROM found

-- name: create_artifact
INSERT INTO fairlead.artifact (id, user_id, state) VALUES ($1, $2, 0) ON CONFLICT DO NOTHING

-- name: create_file
INSERT INTO fairlead.file (id, user_id, artifact_id, state, name, content_type, purpose, created_at, size, sha256,
                           expires_at, job_id, sweep_at)
    VALUES ($1, $2, $3, 0, $4, $5, $6, $7::bigint, $8::bigint, $9, $10::bigint, $11, $12::bigint)
    ON CONFLICT DO NOTHING

-- name: renew_file
UPDATE fairlead.file SET sweep_at = $2::bigint WHERE id = $1 AND state = 0 RETURNING user_id

-- name: create_part
INSERT INTO fairlead.file_part (file_id, artifact_id) VALUES ($1, $2)

-- name: lock_uploading
SELECT artifact_id, user_id FROM fairlead.file WHERE id = $1 AND state = 0 FOR UPDATE

-- name: finish_part
UPDATE fairlead.file_part SET at = $3::bigint, size = $4::bigint
WHERE file_id = $1 AND artifact_id = $2 AND size IS NULL
AND (SELECT coalesce(sum(size), 0) FROM fairlead.file_part WHERE file_id = $1) = $3::bigint
RETURNING 1

-- name: lock_same_bytes
-- $1: user and SHA-256. Two files with the same bytes are completed one after the other.
SELECT pg_advisory_xact_lock(hashtextextended($1, 27))

-- name: same_artifact
-- $1: user, $2: SHA-256, $3: size. The lock waits for a sweep that is dooming the artifact, which is then not returned.
SELECT id FROM fairlead.artifact
WHERE user_id = $1 AND sha256 = $2 AND size = $3::bigint AND state = 1 ORDER BY id LIMIT 1 FOR UPDATE

-- name: finish_artifact
-- $1: id, $2: state, $3: size, $4: SHA-256.
UPDATE fairlead.artifact SET state = $2::smallint, size = $3::bigint, sha256 = $4 WHERE id = $1

-- name: complete_file
-- $1: id, $2: artifact, $3 to $5: name, content type, purpose, $6: size, $7: SHA-256, $8: expires_at, $9: sweep_at.
UPDATE fairlead.file SET state = 1, artifact_id = $2, name = $3, content_type = $4, purpose = $5, size = $6::bigint,
    sha256 = $7, expires_at = $8::bigint, sweep_at = $9::bigint
WHERE id = $1

-- name: lock_file
SELECT id FROM fairlead.file WHERE id = $1 FOR UPDATE

-- name: lock_swept_files
-- $1: now, $2: limit. Skips files that another process sweeps or begins to use.
SELECT id FROM fairlead.file WHERE sweep_at <= $1::bigint ORDER BY sweep_at LIMIT $2::bigint FOR UPDATE SKIP LOCKED

-- name: used_files
SELECT DISTINCT file_id FROM fairlead.file_use WHERE file_id = ANY ($1::text[])

-- name: keep_files
UPDATE fairlead.file SET sweep_at = NULL WHERE id = ANY ($1::text[])

-- name: remove_files
-- Returns the artifacts that the files and their parts named.
WITH gone AS (
    DELETE FROM fairlead.file WHERE id = ANY ($1::text[]) RETURNING artifact_id
), parts AS (
    DELETE FROM fairlead.file_part WHERE file_id = ANY ($1::text[]) RETURNING artifact_id
)
SELECT artifact_id FROM gone UNION SELECT artifact_id FROM parts

-- name: remove_parts
DELETE FROM fairlead.file_part WHERE file_id = $1 RETURNING artifact_id

-- name: lock_artifacts
SELECT id FROM fairlead.artifact WHERE id = ANY ($1::text[]) ORDER BY id FOR UPDATE

-- name: doom_artifacts
-- Must follow `lock_artifacts`.
UPDATE fairlead.artifact AS a SET state = 2
WHERE a.id = ANY ($1::text[]) AND NOT EXISTS (SELECT FROM fairlead.file AS f WHERE f.artifact_id = a.id)

-- name: doomed_artifacts
SELECT id FROM fairlead.artifact WHERE state = 2 ORDER BY id LIMIT $1::bigint

-- name: forget_artifacts
DELETE FROM fairlead.artifact WHERE id = ANY ($1::text[]) AND state = 2

-- name: release_files
-- $1: ids of deleted or erased jobs, $2: now. Files that were made by a job are swept, unless another job uses them.
WITH gone AS (
    DELETE FROM fairlead.file_use WHERE job_id = ANY ($1::text[]) RETURNING file_id
)
UPDATE fairlead.file AS f SET sweep_at = CASE WHEN f.job_id IS NULL THEN f.expires_at ELSE $2::bigint END
WHERE f.id IN (SELECT file_id FROM gone)
