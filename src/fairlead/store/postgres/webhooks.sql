-- The writes of webhooks.

-- name: record_events
-- $1: job ids, $2: runs, $3: events, $4: receivers, $5: what is known about them, $6: whether endpoints may want them,
-- $7: now. The jobs are locked by their moves, or by `lock_runs`.
WITH happened AS (
    SELECT g.*, j.user_id FROM unnest($1::text[], $2::text::int[], $3::text[], $4::text[], $5::text[], $6::text::bool[])
        AS g (job_id, run, event, receiver, about, endpoints)
    JOIN fairlead.job AS j ON j.id = g.job_id
)
INSERT INTO fairlead.webhook_delivery
    (id, event, receiver, user_id, created_at, job_id, run, endpoint_id, next_at, about)
    SELECT 'msg_' || h.job_id || '_' || h.run, h.event, h.receiver, h.user_id, $7::bigint, h.job_id, h.run, NULL,
           $7::bigint, h.about
    FROM happened AS h WHERE h.receiver IS NOT NULL
    UNION ALL
    SELECT 'msg_' || h.job_id || '_' || h.run || '_' || p.id, h.event, p.id, h.user_id, $7::bigint, h.job_id, h.run, p.id,
           $7::bigint, (h.about::jsonb - '{url,shape,subject}'::text[])::text
    FROM happened AS h JOIN fairlead.webhook_endpoint AS p ON p.user_id IS NULL OR p.user_id = h.user_id
    WHERE h.endpoints AND p.url IS NOT NULL AND p.disabled_at IS NULL AND p.events::jsonb ? h.event
    ON CONFLICT DO NOTHING

-- name: lock_runs
-- $1: job ids, $2: runs. The numbers, from 1, of those jobs that still have that run.
SELECT g.n FROM unnest($1::text[], $2::text::int[]) WITH ORDINALITY AS g (job_id, run, n)
JOIN fairlead.job AS j ON j.id = g.job_id AND j.run = g.run FOR UPDATE OF j

-- name: record_batch_event
-- $1: batch, which was just settled, $2: now. A batch that is settled again has another end.
INSERT INTO fairlead.webhook_delivery
    (id, event, receiver, user_id, created_at, batch_id, endpoint_id, next_at, about)
    SELECT 'msg_' || b.id || '_' || b.finished_at, 'batch.ended', b.webhook::json ->> 'receiver', b.user_id, $2::bigint,
           b.id, NULL, $2::bigint,
           ((b.webhook::jsonb -> 'about') || jsonb_build_object('counts', b.counts::jsonb,
                                                               'finished_at', b.finished_at / 1e6))::text
    FROM fairlead.job_batch AS b WHERE b.id = $1 AND b.webhook::json ->> 'receiver' IS NOT NULL
    UNION ALL
    SELECT 'msg_' || b.id || '_' || b.finished_at || '_' || p.id, 'batch.ended', p.id, b.user_id, $2::bigint, b.id, p.id,
           $2::bigint, jsonb_build_object('counts', b.counts::jsonb, 'finished_at', b.finished_at / 1e6)::text
    FROM fairlead.job_batch AS b JOIN fairlead.webhook_endpoint AS p ON p.user_id IS NULL OR p.user_id = b.user_id
    WHERE b.id = $1 AND p.url IS NOT NULL AND p.disabled_at IS NULL AND p.events::jsonb ? 'batch.ended'
    AND b.webhook::json ->> 'silent' IS NULL
    ON CONFLICT DO NOTHING

-- name: create_endpoint
INSERT INTO fairlead.webhook_endpoint AS p
    (id, user_id, url, events, secrets, name, created_at, disabled_at, failing_since, disabled_reason)
    VALUES ($1, $2, $3, $4, $5, $6, $7::bigint, $8::bigint, $9::bigint, $10)
    ON CONFLICT (id) DO UPDATE SET id = p.id
    RETURNING {endpoint_columns}

-- name: save_endpoint
INSERT INTO fairlead.webhook_endpoint AS p
    (id, user_id, url, events, secrets, name, created_at, disabled_at, failing_since, disabled_reason)
    VALUES ($1, $2, $3, $4, $5, $6, $7::bigint, $8::bigint, $9::bigint, $10)
    ON CONFLICT (id) DO UPDATE SET
        user_id = excluded.user_id, url = excluded.url, events = excluded.events, secrets = excluded.secrets,
        name = excluded.name, disabled_at = excluded.disabled_at, failing_since = excluded.failing_since,
        disabled_reason = excluded.disabled_reason
    RETURNING {endpoint_columns}

-- name: declare_endpoint
-- One endpoint of the configuration.
INSERT INTO fairlead.webhook_endpoint AS p (id, user_id, url, events, secrets, name, created_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7::bigint)
    ON CONFLICT (id) DO UPDATE SET
        user_id = excluded.user_id, url = excluded.url, events = excluded.events, secrets = excluded.secrets,
        disabled_at = CASE WHEN p.url = excluded.url THEN p.disabled_at END,
        disabled_reason = CASE WHEN p.url = excluded.url THEN p.disabled_reason END,
        failing_since = CASE WHEN p.url = excluded.url THEN p.failing_since END

-- name: undeclare_endpoints
-- $1: the ids that the configuration has.
DELETE FROM fairlead.webhook_endpoint WHERE name IS NOT NULL AND id <> ALL ($1::text[]) RETURNING id

-- name: delete_endpoint
DELETE FROM fairlead.webhook_endpoint WHERE id = $1 RETURNING id

-- name: fail_deliveries
-- $1: endpoints.
UPDATE fairlead.webhook_delivery SET state = 2, next_at = NULL WHERE state = 0 AND endpoint_id = ANY ($1::text[])

-- name: disable_endpoint
-- $1: id, $2: reason, $3: now.
UPDATE fairlead.webhook_endpoint SET disabled_at = $3::bigint, disabled_reason = $2
    WHERE id = $1 AND disabled_at IS NULL AND url IS NOT NULL RETURNING id

-- name: record_disabled
-- $1: id, $2: reason, $3: now, $4: id of the event.
INSERT INTO fairlead.webhook_delivery (id, event, receiver, user_id, created_at, endpoint_id, next_at, about)
    SELECT 'msg_' || $4::text || '_' || p.id, 'endpoint.disabled', p.id, coalesce(d.user_id, ''), $3::bigint, p.id,
           $3::bigint,
           jsonb_build_object('endpoint_id', d.id, 'url', d.url, 'user_id', d.user_id, 'reason', $2::text)::text
    FROM fairlead.webhook_endpoint AS p, fairlead.webhook_endpoint AS d
    WHERE d.id = $1 AND p.user_id IS NULL AND p.url IS NOT NULL AND p.disabled_at IS NULL
    AND p.events::jsonb ? 'endpoint.disabled'

-- name: claim_deliveries
-- $1: now, $2: until, $3: limit, $4: of each trusted receiver, $5: busy receivers, $6: trusted receivers, $7: the
-- receiver after which to begin, $8: of each other receiver. Steps from one receiver to the next by index, so that the backlog of one does not slow down the claim.
WITH RECURSIVE receivers (receiver) AS (
    (SELECT receiver FROM fairlead.webhook_delivery WHERE state = 0 ORDER BY receiver LIMIT 1)
    UNION ALL
    SELECT (
        SELECT d.receiver FROM fairlead.webhook_delivery AS d WHERE d.state = 0 AND d.receiver > r.receiver
        ORDER BY d.receiver LIMIT 1
    ) FROM receivers AS r WHERE r.receiver IS NOT NULL
), ordered AS (
    SELECT receiver FROM receivers WHERE receiver IS NOT NULL AND receiver <> ALL ($5::text[])
    ORDER BY receiver <= $7::text, receiver
), picked AS (
    SELECT d.id FROM ordered AS r CROSS JOIN LATERAL (
        SELECT d.id FROM fairlead.webhook_delivery AS d
        WHERE d.state = 0 AND d.receiver = r.receiver AND d.next_at <= $1::bigint
        AND NOT EXISTS (
            SELECT FROM fairlead.webhook_delivery AS e
            WHERE e.job_id = d.job_id AND e.receiver = d.receiver AND e.run < d.run AND e.state = 0
        )
        ORDER BY d.next_at, d.seq
        LIMIT CASE WHEN r.receiver = ANY ($6::text[]) THEN $4::bigint ELSE $8::bigint END
        FOR UPDATE SKIP LOCKED
    ) AS d LIMIT $3::bigint
), taken AS (
    UPDATE fairlead.webhook_delivery AS d SET next_at = $2::bigint
    FROM picked WHERE d.id = picked.id RETURNING d.*
)
SELECT {delivery_columns}, {endpoint_columns}
FROM taken AS d LEFT JOIN fairlead.webhook_endpoint AS p ON p.id = coalesce(d.endpoint_id, 'user:' || d.user_id)
ORDER BY d.receiver <= $7::text, d.receiver, d.seq

-- name: record_attempt
-- $1: id, $2: attempts so far, $3: state, $4: next_at, $5: log, $6: body. Later deliveries of the same job wait for it.
WITH recorded AS (
    UPDATE fairlead.webhook_delivery SET attempts = attempts + 1, state = $3::smallint, next_at = $4::bigint, log = $5,
                                         body = $6
    WHERE id = $1 AND attempts = $2::int AND state = 0 RETURNING *
), later AS (
    UPDATE fairlead.webhook_delivery AS d SET next_at = greatest(d.next_at, r.next_at) FROM recorded AS r
    WHERE r.next_at IS NOT NULL AND d.job_id = r.job_id AND d.receiver = r.receiver AND d.run > r.run AND d.state = 0
)
SELECT id FROM recorded

-- name: record_health
-- $1: endpoint, $2: whether the attempt succeeded, $3: now.
UPDATE fairlead.webhook_endpoint SET failing_since = CASE WHEN NOT $2::bool THEN $3::bigint END
    WHERE id = $1 AND (failing_since IS NULL) <> $2::bool

-- name: replay
-- $1 to $8: see `deliveries_where`, $9: now, $10: limit.
UPDATE fairlead.webhook_delivery SET state = 0, next_at = $9::bigint, attempts = 0 WHERE id = ANY (ARRAY(
    SELECT d.id FROM fairlead.webhook_delivery AS d
    WHERE d.state > 0 AND {deliveries_where}
    AND (d.endpoint_id IS NULL OR EXISTS (
        SELECT FROM fairlead.webhook_endpoint AS p WHERE p.id = d.endpoint_id AND p.disabled_at IS NULL
    ))
    ORDER BY d.seq LIMIT $10::bigint FOR UPDATE SKIP LOCKED
)) RETURNING id

-- name: prune_deliveries
-- $1: created before, $2: limit.
DELETE FROM fairlead.webhook_delivery WHERE id = ANY (ARRAY(
    SELECT id FROM fairlead.webhook_delivery WHERE state > 0 AND created_at < $1::bigint
    ORDER BY created_at LIMIT $2::bigint FOR UPDATE SKIP LOCKED
)) RETURNING id
