-- Triggers for the writes of operators, like those in apply.sql. Each write is one row of the view `batch`, because these
-- writes are rare and each must see the effect of the previous one. Each writes one answer; NULL or 0 means refused.

-- body: scope
CREATE TEMP TRIGGER on_rebuild INSTEAD OF INSERT ON rare WHEN NEW.kind = 'rebuild'
BEGIN
    INSERT INTO rebuild_request (scope) SELECT scope FROM epoch WHERE scope = NEW.body ON CONFLICT DO NOTHING;
    INSERT INTO answer SELECT 'rebuild', count(*) FROM epoch WHERE scope = NEW.body;
END;

-- body: [id, role, user_id, name, hash, created_at, revoked_at]
CREATE TEMP TRIGGER on_key INSTEAD OF INSERT ON rare WHEN NEW.kind = 'key'
BEGIN
    INSERT INTO api_key (id, role, user_id, name, hash, created_at, revoked_at)
        VALUES (NEW.body ->> 0, NEW.body ->> 1, NEW.body ->> 2, NEW.body ->> 3, NEW.body ->> 4, NEW.body ->> 5,
                NEW.body ->> 6)
        ON CONFLICT DO NOTHING;
    INSERT INTO answer VALUES ('key', changes());
END;

-- body: [id, now]
CREATE TEMP TRIGGER on_revoke INSTEAD OF INSERT ON rare WHEN NEW.kind = 'revoke'
BEGIN
    DELETE FROM ticket WHERE key_id = NEW.body ->> 0;
    DELETE FROM dashboard_session WHERE key_id = NEW.body ->> 0;
    UPDATE api_key SET revoked_at = NEW.body ->> 1 WHERE id = NEW.body ->> 0 AND revoked_at IS NULL;
    INSERT INTO answer VALUES ('revoke', changes());
END;

-- body: [hash, key_id, expires_at]
CREATE TEMP TRIGGER on_ticket INSTEAD OF INSERT ON rare WHEN NEW.kind = 'ticket'
BEGIN
    DELETE FROM ticket WHERE expires_at <= NEW.now;
    INSERT INTO ticket (hash, key_id, expires_at) VALUES (NEW.body ->> 0, NEW.body ->> 1, NEW.body ->> 2)
        ON CONFLICT DO NOTHING;
END;

-- body: [hash, now]
CREATE TEMP TRIGGER on_use_ticket INSTEAD OF INSERT ON rare WHEN NEW.kind = 'use_ticket'
BEGIN
    INSERT INTO answer SELECT 'use_ticket', (
        SELECT json_quote(key_id) FROM ticket WHERE hash = NEW.body ->> 0 AND expires_at > NEW.body ->> 1
    );
    DELETE FROM ticket WHERE hash = NEW.body ->> 0;
END;

-- body: [id, at, who, action, target, details, outcome]
CREATE TEMP TRIGGER on_audit INSTEAD OF INSERT ON rare WHEN NEW.kind = 'audit'
BEGIN
    INSERT INTO audit (id, at, who, action, target, details, outcome)
        VALUES (NEW.body ->> 0, NEW.body ->> 1, NEW.body ->> 2, NEW.body ->> 3, NEW.body ->> 4, NEW.body ->> 5,
                NEW.body ->> 6)
        ON CONFLICT DO NOTHING;
END;

-- body: [id, outcome]
CREATE TEMP TRIGGER on_audit_outcome INSTEAD OF INSERT ON rare WHEN NEW.kind = 'audit_outcome'
BEGIN
    UPDATE audit SET outcome = NEW.body ->> 1 WHERE id = NEW.body ->> 0;
    INSERT INTO answer VALUES ('audit_outcome', changes());
END;

-- body: [name, about]
CREATE TEMP TRIGGER on_register INSTEAD OF INSERT ON rare WHEN NEW.kind = 'register'
BEGIN
    INSERT INTO process (name, seen_at, about) VALUES (NEW.body ->> 0, NEW.now, NEW.body ->> 1)
        ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at, about = excluded.about;
    INSERT INTO answer SELECT 'register', drain_asked FROM process WHERE name = NEW.body ->> 0;
END;

-- body: name
CREATE TEMP TRIGGER on_deregister INSTEAD OF INSERT ON rare WHEN NEW.kind = 'deregister'
BEGIN
    DELETE FROM process WHERE name = NEW.body;
END;

-- body: [name, on]
CREATE TEMP TRIGGER on_ask_drain INSTEAD OF INSERT ON rare WHEN NEW.kind = 'ask_drain'
BEGIN
    UPDATE process SET drain_asked = NEW.body ->> 1 WHERE name = NEW.body ->> 0;
    INSERT INTO answer VALUES ('ask_drain', changes());
END;

-- body: [audit_before, seen_before, limit]
CREATE TEMP TRIGGER on_prune_records INSTEAD OF INSERT ON rare WHEN NEW.kind = 'prune_records'
BEGIN
    DELETE FROM process WHERE seen_at < NEW.body ->> 1;
    DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE at < NEW.body ->> 0 ORDER BY at LIMIT NEW.body ->> 2);
    INSERT INTO answer VALUES ('prune_records', changes());
END;

-- body: [user_id, key, former reader, reader]
CREATE TEMP TRIGGER on_reader INSTEAD OF INSERT ON rare WHEN NEW.kind = 'reader'
BEGIN
    UPDATE idempotency SET body_hash = NEW.body ->> 3
        WHERE user_id = NEW.body ->> 0 AND key = NEW.body ->> 1 AND body_hash = NEW.body ->> 2;
    INSERT INTO answer VALUES ('reader', changes());
END;

-- body: [[job_id, …], the input of an erased job, the message of its errors]. Of an error, only what Fairlead writes itself
-- is kept.
CREATE TEMP TRIGGER on_erase INSTEAD OF INSERT ON rare WHEN NEW.kind = 'erase'
BEGIN
    DELETE FROM pruning;
    INSERT INTO pruning (seq)
        SELECT job.seq FROM json_each(NEW.body, '$[0]') AS e CROSS JOIN job ON job.id = e.value WHERE job.status > 3;
    DELETE FROM idempotency WHERE (user_id, key) IN (
        SELECT job.user_id, note.idempotency_key FROM pruning AS p
        CROSS JOIN job_note AS note ON note.seq = p.seq CROSS JOIN job ON job.seq = p.seq
    );
    UPDATE job_note SET idempotency_key = NULL WHERE seq IN (SELECT seq FROM pruning);
    UPDATE job_input SET input = NEW.body ->> 1 WHERE seq IN (SELECT seq FROM pruning);
    UPDATE step_result SET data = 'null', metrics = json_remove(metrics, '$.output_chunks', '$.output_run')
        WHERE seq IN (SELECT seq FROM pruning);
    UPDATE attempt SET error = json_patch('{}', json_object(
            'code', error ->> '$.code', 'message', NEW.body ->> 2, 'http_status', error ->> '$.http_status'
        )) WHERE seq IN (SELECT seq FROM pruning);
    UPDATE job SET progress = NULL, goes_back = NULL, retryable = CASE WHEN status = 5 THEN 0 END,
        error = CASE WHEN error IS NOT NULL THEN json_patch('{}', json_object(
            'code', error ->> '$.code', 'message', NEW.body ->> 2, 'http_status', error ->> '$.http_status',
            'attempts', error ->> '$.attempts', 'reason', error ->> '$.reason'
        )) END WHERE seq IN (SELECT seq FROM pruning);
    -- As if the jobs were deleted (see `forgetting`): files that hold their inputs and results are swept.
    UPDATE file SET sweep_at = CASE WHEN job_id IS NULL THEN expires_at ELSE 0 END WHERE id IN (
        SELECT u.file_id FROM pruning AS p
        CROSS JOIN job ON job.seq = p.seq CROSS JOIN file_use AS u ON u.job_id = job.id
    );
    DELETE FROM file_use WHERE job_id IN (SELECT job.id FROM pruning AS p CROSS JOIN job ON job.seq = p.seq);
    INSERT INTO answer SELECT 'erased', count(*) FROM pruning;
END;
