-- Triggers for the writes of webhooks, like those in admin.sql.

CREATE TEMP TABLE claiming (id TEXT PRIMARY KEY);
CREATE TEMP VIEW disabling (endpoint_id, reason, event_id, now) AS SELECT NULL, NULL, NULL, NULL WHERE 0;

-- body: [[n of the move or null, job_id, run, event, receiver, about, endpoints], …]. Must follow `move`. An event without a
-- move is written only if the job still has that run.
CREATE TEMP TRIGGER on_event INSTEAD OF INSERT ON rare WHEN NEW.kind = 'event'
BEGIN
    INSERT INTO webhook_delivery (id, event, receiver, user_id, created_at, job_id, run, endpoint_id, next_at, about)
        SELECT 'msg_' || j.id || '_' || (value ->> 2), value ->> 3, value ->> 4, j.user_id, NEW.now, j.id, value ->> 2,
               NULL, NEW.now, value ->> 5
        FROM json_each(NEW.body) CROSS JOIN job AS j ON j.id = value ->> 1
        WHERE value ->> 4 IS NOT NULL AND j.run = value ->> 2
        AND (value ->> 0 IS NULL OR EXISTS (SELECT 1 FROM moving AS m WHERE m.n = value ->> 0))
        ON CONFLICT DO NOTHING;
    INSERT INTO webhook_delivery (id, event, receiver, user_id, created_at, job_id, run, endpoint_id, next_at, about)
        SELECT 'msg_' || j.id || '_' || (e.value ->> 2) || '_' || p.id, e.value ->> 3, p.id, j.user_id, NEW.now, j.id,
               e.value ->> 2, p.id, NEW.now, json_remove(e.value ->> 5, '$.url', '$.shape', '$.subject')
        FROM json_each(NEW.body) AS e CROSS JOIN job AS j ON j.id = e.value ->> 1
        CROSS JOIN webhook_endpoint AS p ON p.user_id IS NULL OR p.user_id = j.user_id
        WHERE e.value ->> 6 AND j.run = e.value ->> 2 AND p.url IS NOT NULL AND p.disabled_at IS NULL
        AND EXISTS (SELECT 1 FROM json_each(p.events) AS w WHERE w.value = e.value ->> 3)
        AND (e.value ->> 0 IS NULL OR EXISTS (SELECT 1 FROM moving AS m WHERE m.n = e.value ->> 0))
        ON CONFLICT DO NOTHING;
END;

-- body: batch_id. Must follow `settle`. A batch that is settled again has another end.
CREATE TEMP TRIGGER on_batch_event INSTEAD OF INSERT ON rare WHEN NEW.kind = 'batch_event'
BEGIN
    INSERT INTO webhook_delivery (id, event, receiver, user_id, created_at, batch_id, endpoint_id, next_at, about)
        SELECT 'msg_' || b.id || '_' || b.finished_at, 'batch.ended', b.webhook ->> '$.receiver', b.user_id, NEW.now,
               b.id, NULL, NEW.now, json_set(b.webhook -> '$.about', '$.counts', json(b.counts),
                                             '$.finished_at', b.finished_at / 1e6)
        FROM job_batch AS b
        WHERE b.id = NEW.body AND b.finished_at IS NOT NULL AND b.webhook ->> '$.receiver' IS NOT NULL
        ON CONFLICT DO NOTHING;
    INSERT INTO webhook_delivery (id, event, receiver, user_id, created_at, batch_id, endpoint_id, next_at, about)
        SELECT 'msg_' || b.id || '_' || b.finished_at || '_' || p.id, 'batch.ended', p.id, b.user_id, NEW.now, b.id, p.id,
               NEW.now, json_object('counts', json(b.counts), 'finished_at', b.finished_at / 1e6)
        FROM job_batch AS b CROSS JOIN webhook_endpoint AS p ON p.user_id IS NULL OR p.user_id = b.user_id
        WHERE b.id = NEW.body AND b.finished_at IS NOT NULL AND p.url IS NOT NULL AND p.disabled_at IS NULL
        AND b.webhook ->> '$.silent' IS NULL
        AND EXISTS (SELECT 1 FROM json_each(p.events) AS w WHERE w.value = 'batch.ended')
        ON CONFLICT DO NOTHING;
END;

-- body: [id, user_id, url, events, secrets, name, created_at, disabled_at, failing_since, disabled_reason, create]
CREATE TEMP TRIGGER on_endpoint INSTEAD OF INSERT ON rare WHEN NEW.kind = 'endpoint'
BEGIN
    DELETE FROM webhook_endpoint WHERE id = NEW.body ->> 0 AND NOT NEW.body ->> 10;
    INSERT INTO webhook_endpoint (id, user_id, url, events, secrets, name, created_at, disabled_at, failing_since,
                                  disabled_reason)
        VALUES (NEW.body ->> 0, NEW.body ->> 1, NEW.body ->> 2, NEW.body ->> 3, NEW.body ->> 4, NEW.body ->> 5,
                NEW.body ->> 6, NEW.body ->> 7, NEW.body ->> 8, NEW.body ->> 9)
        ON CONFLICT DO NOTHING;
    INSERT INTO answer SELECT 'endpoint', json_array({endpoint_columns}) FROM webhook_endpoint AS p
        WHERE p.id = NEW.body ->> 0;
END;

-- body: [endpoint as for `endpoint`, …]
CREATE TEMP TRIGGER on_declare_endpoints INSTEAD OF INSERT ON rare WHEN NEW.kind = 'declare_endpoints'
BEGIN
    DELETE FROM webhook_endpoint
        WHERE name IS NOT NULL AND id NOT IN (SELECT value ->> 0 FROM json_each(NEW.body));
    INSERT INTO webhook_endpoint (id, user_id, url, events, secrets, name, created_at)
        SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, NEW.now
        FROM json_each(NEW.body) WHERE TRUE
        ON CONFLICT (id) DO UPDATE SET
            user_id = excluded.user_id, url = excluded.url, events = excluded.events, secrets = excluded.secrets,
            disabled_at = CASE WHEN url = excluded.url THEN disabled_at END,
            disabled_reason = CASE WHEN url = excluded.url THEN disabled_reason END,
            failing_since = CASE WHEN url = excluded.url THEN failing_since END;
    UPDATE webhook_delivery SET state = 2, next_at = NULL WHERE state = 0 AND endpoint_id IS NOT NULL
        AND endpoint_id NOT IN (SELECT id FROM webhook_endpoint);
END;

-- body: id
CREATE TEMP TRIGGER on_delete_endpoint INSTEAD OF INSERT ON rare WHEN NEW.kind = 'delete_endpoint'
BEGIN
    UPDATE webhook_delivery SET state = 2, next_at = NULL WHERE state = 0 AND endpoint_id = NEW.body;
    DELETE FROM webhook_endpoint WHERE id = NEW.body;
    INSERT INTO answer VALUES ('delete_endpoint', changes());
END;

-- body: [id, attempts, state, next_at, log, body, endpoint_id, now]
CREATE TEMP TRIGGER on_attempt INSTEAD OF INSERT ON rare WHEN NEW.kind = 'attempt'
BEGIN
    UPDATE webhook_delivery SET attempts = attempts + 1, state = NEW.body ->> 2, next_at = NEW.body ->> 3,
                                log = NEW.body ->> 4, body = NEW.body ->> 5
        WHERE id = NEW.body ->> 0 AND attempts = NEW.body ->> 1 AND state = 0;
    INSERT INTO answer VALUES ('attempt', changes());
    -- Later deliveries of the same job wait for this one.
    UPDATE webhook_delivery SET next_at = max(webhook_delivery.next_at, NEW.body ->> 3)
        FROM webhook_delivery AS d
        WHERE d.id = NEW.body ->> 0 AND NEW.body ->> 3 IS NOT NULL AND webhook_delivery.job_id = d.job_id
        AND webhook_delivery.receiver = d.receiver AND webhook_delivery.run > d.run AND webhook_delivery.state = 0;
    UPDATE webhook_endpoint SET failing_since = CASE NEW.body ->> 2 WHEN 1 THEN NULL ELSE NEW.body ->> 7 END
        WHERE id = NEW.body ->> 6 AND (failing_since IS NULL) <> (NEW.body ->> 2 = 1);
END;

-- body: [id, reason, id of the event]
CREATE TEMP TRIGGER on_disable_endpoint INSTEAD OF INSERT ON rare WHEN NEW.kind = 'disable_endpoint'
BEGIN
    INSERT INTO answer SELECT 'disable_endpoint', count(*) FROM webhook_endpoint
        WHERE id = NEW.body ->> 0 AND disabled_at IS NULL AND url IS NOT NULL;
    INSERT INTO disabling SELECT id, NEW.body ->> 1, NEW.body ->> 2, NEW.now FROM webhook_endpoint
        WHERE id = NEW.body ->> 0 AND disabled_at IS NULL AND url IS NOT NULL;
END;

CREATE TEMP TRIGGER on_disabling INSTEAD OF INSERT ON disabling
BEGIN
    UPDATE webhook_endpoint SET disabled_at = NEW.now, disabled_reason = NEW.reason WHERE id = NEW.endpoint_id;
    UPDATE webhook_delivery SET state = 2, next_at = NULL WHERE state = 0 AND endpoint_id = NEW.endpoint_id;
    INSERT INTO webhook_delivery (id, event, receiver, user_id, created_at, endpoint_id, next_at, about)
        SELECT 'msg_' || NEW.event_id || '_' || p.id, 'endpoint.disabled', p.id, coalesce(d.user_id, ''), NEW.now, p.id,
               NEW.now, json_object('endpoint_id', d.id, 'url', d.url, 'user_id', d.user_id, 'reason', NEW.reason)
        FROM webhook_endpoint AS p CROSS JOIN webhook_endpoint AS d ON d.id = NEW.endpoint_id
        WHERE p.user_id IS NULL AND p.url IS NOT NULL AND p.disabled_at IS NULL
        AND EXISTS (SELECT 1 FROM json_each(p.events) AS w WHERE w.value = 'endpoint.disabled');
END;

-- body: [now, until, limit, each, busy, trusted, after, probes]
CREATE TEMP TRIGGER on_claim_deliveries INSTEAD OF INSERT ON rare WHEN NEW.kind = 'claim_deliveries'
BEGIN
    DELETE FROM claiming;
    INSERT INTO claiming
        SELECT id FROM (
            SELECT d.id, d.receiver, d.next_at,
                   row_number() OVER (PARTITION BY d.receiver ORDER BY d.next_at, d.seq) AS n
            FROM webhook_delivery AS d
            WHERE d.state = 0 AND d.next_at <= min(NEW.body ->> 0, NEW.now)
            AND d.receiver NOT IN (SELECT value FROM json_each(NEW.body, '$[4]'))
            AND NOT EXISTS (
                SELECT 1 FROM webhook_delivery AS e
                WHERE e.job_id = d.job_id AND e.receiver = d.receiver AND e.run < d.run AND e.state = 0
            )
        ) WHERE n <= iif(receiver IN (SELECT value FROM json_each(NEW.body, '$[5]')), NEW.body ->> 3, NEW.body ->> 7)
        ORDER BY receiver <= NEW.body ->> 6, receiver, next_at LIMIT NEW.body ->> 2;
    UPDATE webhook_delivery SET next_at = NEW.body ->> 1 WHERE id IN (SELECT id FROM claiming);
    INSERT INTO answer
        SELECT 'claimed', '[' || coalesce(group_concat(row, ','), '') || ']' FROM (
            SELECT json_array({delivery_columns}, {endpoint_columns}) AS row
            FROM claiming CROSS JOIN webhook_delivery AS d ON d.id = claiming.id
            LEFT JOIN webhook_endpoint AS p ON p.id = coalesce(d.endpoint_id, 'user:' || d.user_id)
            ORDER BY d.receiver <= NEW.body ->> 6, d.receiver, d.seq
        );
END;

-- body: [the columns of `DeliveryFilter.row`, limit]
CREATE TEMP TRIGGER on_replay INSTEAD OF INSERT ON rare WHEN NEW.kind = 'replay'
BEGIN
    UPDATE webhook_delivery SET state = 0, next_at = NEW.now, attempts = 0 WHERE id IN (
        SELECT d.id FROM webhook_delivery AS d
        WHERE d.state > 0 AND (NEW.body ->> 0 IS NULL OR (d.user_id = NEW.body ->> 0 AND (d.endpoint_id IS NULL OR EXISTS (
            SELECT 1 FROM webhook_endpoint AS own WHERE own.id = d.endpoint_id AND own.user_id = NEW.body ->> 0
        ))))
        AND (NEW.body ->> 1 IS NULL OR d.id IN (SELECT value FROM json_each(NEW.body ->> 1)))
        AND (NEW.body ->> 2 IS NULL OR d.job_id = NEW.body ->> 2)
        AND (NEW.body ->> 3 IS NULL OR d.endpoint_id = NEW.body ->> 3)
        AND (NEW.body ->> 4 IS NULL OR d.state = NEW.body ->> 4)
        AND (NEW.body ->> 5 IS NULL OR d.event = NEW.body ->> 5)
        AND (NEW.body ->> 6 IS NULL OR d.created_at >= NEW.body ->> 6)
        AND (NEW.body ->> 7 IS NULL OR d.created_at < NEW.body ->> 7)
        AND (d.endpoint_id IS NULL OR EXISTS (
            SELECT 1 FROM webhook_endpoint AS p WHERE p.id = d.endpoint_id AND p.disabled_at IS NULL
        ))
        ORDER BY d.seq LIMIT NEW.body ->> 8
    );
    INSERT INTO answer VALUES ('replay', changes());
END;

-- body: [created_before, limit]
CREATE TEMP TRIGGER on_prune_deliveries INSTEAD OF INSERT ON rare WHEN NEW.kind = 'prune_deliveries'
BEGIN
    DELETE FROM webhook_delivery WHERE seq IN (
        SELECT seq FROM webhook_delivery WHERE state > 0 AND created_at < NEW.body ->> 0
        ORDER BY created_at LIMIT NEW.body ->> 1
    );
    INSERT INTO answer VALUES ('prune_deliveries', changes());
END;
