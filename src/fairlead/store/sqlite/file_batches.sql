-- Triggers for the writes of file batches, like those in admin.sql.

-- body: [id, user_id, created_at, data, key, input file]
CREATE TEMP TRIGGER on_create_file_batch INSTEAD OF INSERT ON rare WHEN NEW.kind = 'create_file_batch'
BEGIN
    INSERT INTO file_batch (id, user_id, version, created_at, data, request_key)
        SELECT NEW.body ->> 0, NEW.body ->> 1, 0, NEW.body ->> 2, NEW.body ->> 3, NEW.body ->> 4
        FROM file WHERE id = NEW.body ->> 5 AND state = 1
        ON CONFLICT (user_id, request_key) WHERE request_key IS NOT NULL DO NOTHING;
    INSERT INTO answer VALUES ('create_file_batch', changes());
    INSERT INTO file_use (job_id, file_id)
        SELECT id, NEW.body ->> 5 FROM file_batch WHERE id = NEW.body ->> 0 ON CONFLICT DO NOTHING;
    UPDATE file SET sweep_at = NULL
        WHERE id = NEW.body ->> 5 AND sweep_at IS NOT NULL AND EXISTS (SELECT 1 FROM file_batch WHERE id = NEW.body ->> 0);
END;

-- body: [id, version, ended_at, data, [output file, …], release, about]
CREATE TEMP TRIGGER on_change_file_batch INSTEAD OF INSERT ON rare WHEN NEW.kind = 'change_file_batch'
BEGIN
    UPDATE file_batch SET version = version + 1, ended_at = NEW.body ->> 2, data = NEW.body ->> 3
        WHERE id = NEW.body ->> 0 AND version = NEW.body ->> 1 AND NOT EXISTS (
            SELECT 1 FROM json_each(NEW.body, '$[4]') AS f
            WHERE NOT EXISTS (SELECT 1 FROM file WHERE id = f.value AND state = 1)
        );
    INSERT INTO answer VALUES ('change_file_batch', changes());
    INSERT INTO changed_file_batch (id, user_id, release, about, now)
        SELECT id, user_id, NEW.body ->> 5, NEW.body ->> 6, NEW.now FROM file_batch
        WHERE id = NEW.body ->> 0 AND version = NEW.body ->> 1 + 1 AND data = NEW.body ->> 3;
END;

-- What else a change does, if it was applied.
CREATE TEMP VIEW changed_file_batch (id, user_id, release, about, now) AS SELECT NULL, NULL, NULL, NULL, NULL WHERE 0;
CREATE TEMP TRIGGER on_changed_file_batch INSTEAD OF INSERT ON changed_file_batch
BEGIN
    UPDATE file SET sweep_at = CASE WHEN job_id IS NULL THEN expires_at ELSE 0 END
        WHERE NEW.release AND id IN (SELECT file_id FROM file_use WHERE job_id = NEW.id);
    DELETE FROM file_use WHERE NEW.release AND job_id = NEW.id;
    INSERT INTO webhook_delivery (id, event, receiver, user_id, created_at, batch_id, endpoint_id, next_at, about)
        SELECT 'msg_' || NEW.id || '_' || p.id, 'batch.ended', p.id, NEW.user_id, NEW.now, NEW.id, p.id, NEW.now, NEW.about
        FROM webhook_endpoint AS p
        WHERE NEW.about IS NOT NULL AND (p.user_id IS NULL OR p.user_id = NEW.user_id)
        AND p.url IS NOT NULL AND p.disabled_at IS NULL
        AND EXISTS (SELECT 1 FROM json_each(p.events) AS w WHERE w.value = 'batch.ended')
        ON CONFLICT DO NOTHING;
END;

-- body: [ended_before, limit]
CREATE TEMP TRIGGER on_prune_file_batches INSTEAD OF INSERT ON rare WHEN NEW.kind = 'prune_file_batches'
BEGIN
    DELETE FROM file_batch WHERE id IN (
        SELECT id FROM file_batch WHERE ended_at < NEW.body ->> 0 ORDER BY ended_at LIMIT NEW.body ->> 1
    );
    INSERT INTO answer VALUES ('prune_file_batches', changes());
END;
