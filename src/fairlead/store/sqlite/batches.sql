-- Triggers for batches of jobs, like those in apply.sql. (The view `batch` is a batch of transitions.)

-- body: [id, user_id, name, metadata, created_at, total, idempotency_key, body_hash, webhook, id of its first job]. Not stored if
-- its jobs were refused.
CREATE TEMP TRIGGER on_job_batch INSTEAD OF INSERT ON rare
WHEN NEW.kind = 'job_batch' AND EXISTS (SELECT 1 FROM job WHERE id = NEW.body ->> 9)
BEGIN
    INSERT INTO job_batch (id, user_id, name, metadata, created_at, total, idempotency_key, body_hash, webhook)
        VALUES (NEW.body ->> 0, NEW.body ->> 1, NEW.body ->> 2, NEW.body ->> 3, NEW.body ->> 4, NEW.body ->> 5,
                NEW.body ->> 6, NEW.body ->> 7, NEW.body ->> 8);
END;

-- body: [[batch_id, item, job_id, custom_id], …]. Must follow `job_batch`.
CREATE TEMP TRIGGER on_batch_item INSTEAD OF INSERT ON rare
WHEN NEW.kind = 'batch_item' AND EXISTS (SELECT 1 FROM job_batch WHERE id = NEW.body ->> '$[0][0]')
BEGIN
    INSERT INTO batch_item (batch_id, item, job_id, custom_id)
        SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(NEW.body);
END;

-- body: [batch_id, now]
CREATE TEMP TRIGGER on_settle INSTEAD OF INSERT ON rare WHEN NEW.kind = 'settle'
BEGIN
    UPDATE job_batch SET
        finished_at = coalesce((
            SELECT max(j.finished_at) FROM batch_item AS i CROSS JOIN job AS j ON j.id = i.job_id
            WHERE i.batch_id = NEW.body ->> 0
        ), NEW.body ->> 1),
        counts = (
            SELECT json_group_array(json_array(status, n)) FROM (
                SELECT j.status, count(*) AS n FROM batch_item AS i CROSS JOIN job AS j ON j.id = i.job_id
                WHERE i.batch_id = NEW.body ->> 0 GROUP BY j.status
            )
        )
        WHERE id = NEW.body ->> 0 AND finished_at IS NULL AND NOT EXISTS (
            SELECT 1 FROM batch_item AS i CROSS JOIN job AS j ON j.id = i.job_id
            WHERE i.batch_id = NEW.body ->> 0 AND j.status < 4
        );
    INSERT INTO answer VALUES ('settle', changes());
END;

-- body: [job_id, …] of jobs that begin a new round.
CREATE TEMP TRIGGER on_reopen INSTEAD OF INSERT ON rare WHEN NEW.kind = 'reopen'
BEGIN
    UPDATE job_batch SET finished_at = NULL, counts = NULL
        WHERE id IN (SELECT i.batch_id FROM json_each(NEW.body) AS r CROSS JOIN batch_item AS i ON i.job_id = r.value);
END;

-- body: [finished_before, limit]
CREATE TEMP TRIGGER on_prune_batches INSTEAD OF INSERT ON rare WHEN NEW.kind = 'prune_batches'
BEGIN
    DELETE FROM batch_item WHERE batch_id IN (
        SELECT id FROM job_batch WHERE finished_at < NEW.body ->> 0 ORDER BY finished_at LIMIT NEW.body ->> 1
    );
    DELETE FROM job_batch WHERE id IN (
        SELECT id FROM job_batch WHERE finished_at < NEW.body ->> 0 ORDER BY finished_at LIMIT NEW.body ->> 1
    );
    INSERT INTO answer VALUES ('prune_batches', changes());
END;
