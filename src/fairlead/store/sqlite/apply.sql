-- A commit is ONE statement: INSERT INTO batch VALUES ('begin', …), ('submit', …), ('start', …), …
--
-- `batch` is an empty view, and each kind of row fires the trigger of that name below. The statement is one implicit
-- transaction and one call of sqlite3_step, so the writer thread releases the GIL once, not once per row or statement.
-- That keeps commits fast while the event loop is busy.
--
-- These are TEMP objects of the writing connection, not part of the database file. `body` is a JSON array; `n` counts the
-- transitions of one kind within the batch. The results are collected in `answer`, for one SELECT.

CREATE TEMP TABLE answer (kind TEXT, value TEXT);
CREATE TEMP TABLE turned_away (n INTEGER PRIMARY KEY, why TEXT, job_id TEXT);
CREATE TEMP TABLE tally (user_id TEXT PRIMARY KEY, waiting INTEGER) WITHOUT ROWID;
CREATE TEMP TABLE starting (n INTEGER PRIMARY KEY, seq INTEGER, lease TEXT, worker TEXT, timeout INTEGER, region TEXT);
CREATE TEMP TABLE moving (
    n INTEGER PRIMARY KEY, seq INTEGER, job_id TEXT, run INTEGER, status INTEGER, step INTEGER, attempt INTEGER,
    round INTEGER, tells_line INTEGER, timer_at INTEGER, waiting_since INTEGER, finished_at INTEGER, retryable INTEGER,
    error TEXT, queued_at INTEGER, priority INTEGER, promoted_at INTEGER, last_progress_at INTEGER, spilled_at INTEGER,
    goes_back TEXT, outcome INTEGER, ended_at INTEGER, service TEXT, reported TEXT
);
CREATE TEMP TABLE pruning (seq INTEGER PRIMARY KEY);
CREATE TEMP TABLE piece (k INTEGER PRIMARY KEY, value TEXT);

CREATE TEMP VIEW batch (kind, body, now, origin) AS SELECT NULL, NULL, NULL, NULL WHERE 0;
CREATE TEMP VIEW rare (kind, body, now, origin) AS SELECT NULL, NULL, NULL, NULL WHERE 0;
CREATE TEMP VIEW admission (n, job_id, user_id, key, body_hash, max_waiting) AS
    SELECT NULL, NULL, NULL, NULL, NULL, NULL WHERE 0;
CREATE TEMP VIEW forgetting (seq) AS SELECT NULL WHERE 0;

CREATE TEMP TRIGGER on_begin INSTEAD OF INSERT ON batch WHEN NEW.kind = 'begin'
BEGIN
    DELETE FROM answer;
    DELETE FROM turned_away;
    DELETE FROM tally;
    DELETE FROM starting;
    DELETE FROM moving;
    DELETE FROM piece;
END;

-- A row of any other kind than these. SQLite begins the program of every trigger of `batch` for every row, so most kinds
-- have their triggers on a view of their own: with all of them on `batch`, a commit of one job took 25 µs longer.
CREATE TEMP TRIGGER on_rare INSTEAD OF INSERT ON batch
WHEN NEW.kind NOT IN (
    'begin', 'admit', 'claim', 'late', 'submit', 'submit_started', 'input', 'note', 'start', 'move', 'piece', 'result',
    'progress', 'relayed'
)
BEGIN
    INSERT INTO rare VALUES (NEW.kind, NEW.body, NEW.now, NEW.origin);
END;

-- ---------------------------------------------------------------- the rules and the epochs

-- body: [scope, dispatcher server, required version of the rules or null]. Answers null if the version differs.
CREATE TEMP TRIGGER on_epoch INSTEAD OF INSERT ON rare WHEN NEW.kind = 'epoch'
BEGIN
    INSERT INTO epoch (scope, number)
        SELECT NEW.body ->> 0, 1 FROM rules WHERE version = coalesce(NEW.body ->> 2, version)
        ON CONFLICT (scope) DO UPDATE SET number = number + 1;
    INSERT INTO epoch_server (scope, server)
        SELECT NEW.body ->> 0, NEW.body ->> 1 FROM rules WHERE version = coalesce(NEW.body ->> 2, version)
        ON CONFLICT (scope) DO UPDATE SET server = excluded.server;
    DELETE FROM rebuild_request
        WHERE scope = NEW.body ->> 0 AND EXISTS (SELECT 1 FROM rules WHERE version = coalesce(NEW.body ->> 2, version));
    INSERT INTO answer SELECT 'epoch', CASE WHEN version = coalesce(NEW.body ->> 2, version) THEN (
        SELECT number FROM epoch WHERE scope = NEW.body ->> 0
    ) END FROM rules;
END;

-- body: [the declaration in canonical form, the required version or null, the scopes whose epochs are raised]. The
-- version is raised only if the declaration has changed. Answers null if refused.
CREATE TEMP TRIGGER on_declare INSTEAD OF INSERT ON rare WHEN NEW.kind = 'declare'
BEGIN
    INSERT INTO epoch (scope, number)
        SELECT s.value, 1 FROM rules, json_each(NEW.body, '$[2]') AS s
        WHERE declared <> NEW.body ->> 0 AND version = coalesce(NEW.body ->> 1, version)
        ON CONFLICT (scope) DO UPDATE SET number = number + 1;
    UPDATE rules SET version = version + 1, declared = NEW.body ->> 0
        WHERE declared <> NEW.body ->> 0 AND version = coalesce(NEW.body ->> 1, version);
    INSERT INTO answer SELECT 'rules', CASE
        WHEN declared = NEW.body ->> 0 AND version - coalesce(NEW.body ->> 1, version) IN (0, 1) THEN {rules}
    END FROM rules;
END;

-- body: [service, limit, paused, lift_limit]. Writes nothing for an undeclared service.
CREATE TEMP TRIGGER on_override INSTEAD OF INSERT ON rare WHEN NEW.kind = 'override'
BEGIN
    INSERT INTO service_override (service, slots, paused)
        SELECT NEW.body ->> 0, NULL, NULL
        WHERE EXISTS (
            SELECT 1 FROM rules, json_each(declared, '$.services') AS s WHERE s.value ->> '$.service' = NEW.body ->> 0
        )
        ON CONFLICT DO NOTHING;
    UPDATE rules SET version = version + 1 WHERE EXISTS (
        SELECT 1 FROM service_override WHERE service = NEW.body ->> 0
        AND (
            slots IS NOT iif(NEW.body ->> 3, NULL, coalesce(NEW.body ->> 1, slots))
            OR paused IS NOT coalesce(NEW.body ->> 2, paused)
        )
    );
    UPDATE service_override SET
        slots = iif(NEW.body ->> 3, NULL, coalesce(NEW.body ->> 1, slots)), paused = coalesce(NEW.body ->> 2, paused)
        WHERE service = NEW.body ->> 0;
    INSERT INTO answer SELECT 'override', CASE
        WHEN EXISTS (
            SELECT 1 FROM rules, json_each(declared, '$.services') AS s WHERE s.value ->> '$.service' = NEW.body ->> 0
        ) THEN {rules} END;
END;

-- body: [the required version, the scopes whose epochs are raised, [[kind, name, region, rate as JSON or null], …]].
-- Answers null if refused; 1 stands for the rules until they are written.
CREATE TEMP TRIGGER on_rates INSTEAD OF INSERT ON rare WHEN NEW.kind = 'rates'
BEGIN
    INSERT INTO answer SELECT 'rates', iif(version = NEW.body ->> 0, '1', NULL) FROM rules;
    INSERT INTO epoch (scope, number)
        SELECT s.value, 1 FROM answer AS a, json_each(NEW.body, '$[1]') AS s WHERE a.kind = 'rates' AND a.value = '1'
        ON CONFLICT (scope) DO UPDATE SET number = number + 1;
    INSERT OR REPLACE INTO rate_override (kind, name, region, rate)
        SELECT r.value ->> 0, r.value ->> 1, r.value ->> 2, coalesce(r.value ->> 3, '')
        FROM answer AS a, json_each(NEW.body, '$[2]') AS r WHERE a.kind = 'rates' AND a.value = '1';
    DELETE FROM rate_override WHERE rate = '';
    UPDATE rules SET version = version + 1 WHERE EXISTS (SELECT 1 FROM answer WHERE kind = 'rates' AND value = '1');
    UPDATE answer SET value = {rules} WHERE kind = 'rates' AND value = '1';
END;

-- body: [service, old limit, new limit, best latency, history]. Writes nothing if the service is not declared or its limit
-- is not the old one.
CREATE TEMP TRIGGER on_adapt INSTEAD OF INSERT ON rare WHEN NEW.kind = 'adapt'
BEGIN
    INSERT INTO answer SELECT 'adapt', (
        SELECT version + 1 FROM rules WHERE EXISTS (
            SELECT 1 FROM json_each(declared, '$.services') AS s WHERE s.value ->> '$.service' = NEW.body ->> 0
        ) AND (SELECT slots FROM adaptive_limit WHERE service = NEW.body ->> 0) IS NEW.body ->> 1
    );
    INSERT INTO adaptive_limit (service, slots, best, history)
        SELECT NEW.body ->> 0, NEW.body ->> 2, NEW.body ->> 3, NEW.body ->> 4
        WHERE (SELECT value FROM answer WHERE kind = 'adapt' ORDER BY rowid DESC LIMIT 1) IS NOT NULL
        ON CONFLICT (service) DO UPDATE
            SET slots = excluded.slots, best = excluded.best, history = excluded.history;
    UPDATE rules SET version = version + 1
        WHERE (SELECT value FROM answer WHERE kind = 'adapt' ORDER BY rowid DESC LIMIT 1) IS NOT NULL;
END;

-- ---------------------------------------------------------------- submit

-- body: [[n, job_id, user_id, key, body_hash, max_waiting], …], of the submits that may be refused. They are checked
-- one after the other, because earlier submits of the same batch affect later ones.
CREATE TEMP TRIGGER on_admit INSTEAD OF INSERT ON batch WHEN NEW.kind = 'admit'
BEGIN
    -- Each user is counted once per batch, not once per submit.
    INSERT INTO tally
        SELECT capped.user_id, (SELECT count(*) FROM job WHERE job.user_id = capped.user_id AND status < 3)
        FROM (SELECT DISTINCT value ->> 2 AS user_id FROM {rows} WHERE value ->> 5 > 0) AS capped;
    INSERT INTO admission
        SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 FROM {rows};
END;

CREATE TEMP TRIGGER on_admission INSTEAD OF INSERT ON admission
BEGIN
    -- The key was used before: the same body returns the earlier job, another body is an error.
    INSERT INTO turned_away
        SELECT NEW.n, CASE WHEN body_hash IS NEW.body_hash THEN 'replayed' ELSE 'mismatch' END, job_id
        FROM idempotency WHERE user_id = NEW.user_id AND key = NEW.key;
    INSERT INTO turned_away
        SELECT NEW.n, 'too_many', NULL FROM tally
        WHERE user_id = NEW.user_id AND NEW.max_waiting > 0 AND waiting >= NEW.max_waiting
        AND NOT EXISTS (SELECT 1 FROM turned_away WHERE n = NEW.n);
    INSERT INTO idempotency
        SELECT NEW.user_id, NEW.key, NEW.body_hash, NEW.job_id
        WHERE NEW.key IS NOT NULL AND NOT EXISTS (SELECT 1 FROM turned_away WHERE n = NEW.n);
    UPDATE tally SET waiting = waiting + 1
        WHERE user_id = NEW.user_id AND NOT EXISTS (SELECT 1 FROM turned_away WHERE n = NEW.n);
END;

-- body: as for `admit`, if no submit has a limit of waiting jobs. The first submit with a key claims it. Usually all keys
-- are new (`changes()` counts them). Otherwise a submit is turned away if its key belongs to another job, or if its job
-- exists: it is a retry of the same submit.
CREATE TEMP TRIGGER on_claim INSTEAD OF INSERT ON batch WHEN NEW.kind = 'claim'
BEGIN
    INSERT INTO idempotency
        SELECT value ->> 2, value ->> 3, value ->> 4, value ->> 1 FROM {rows} WHERE true
        ON CONFLICT (user_id, key) DO NOTHING;
    INSERT INTO turned_away
        SELECT value ->> 0, CASE WHEN i.body_hash IS value ->> 4 THEN 'replayed' ELSE 'mismatch' END, i.job_id
        FROM json_each(iif(changes() < json_array_length(NEW.body), NEW.body, '[]'))
        CROSS JOIN idempotency AS i ON i.user_id = value ->> 2 AND i.key = value ->> 3
        WHERE i.job_id <> value ->> 1 OR EXISTS (SELECT 1 FROM job WHERE job.id = value ->> 1);
END;

-- body: as for `admit`, with all submits. One error refuses the whole batch.
CREATE TEMP TRIGGER on_all_or_nothing INSTEAD OF INSERT ON rare
WHEN NEW.kind = 'all_or_nothing' AND EXISTS (SELECT 1 FROM turned_away WHERE why <> 'replayed')
BEGIN
    DELETE FROM idempotency WHERE (user_id, key) IN (
        SELECT value ->> 2, value ->> 3 FROM {rows} WHERE value ->> 0 NOT IN (SELECT n FROM turned_away)
    );
    INSERT INTO turned_away
        SELECT value ->> 0, 'undone', NULL FROM {rows}
        WHERE value ->> 0 NOT IN (SELECT n FROM turned_away);
END;

-- body: µs. Whether the outbox has rows that no process relays or that are older than this.
CREATE TEMP TRIGGER on_late INSTEAD OF INSERT ON batch WHEN NEW.kind = 'late'
BEGIN
    INSERT INTO answer
        SELECT 'late', EXISTS (SELECT 1 FROM outbox WHERE origin <> NEW.origin OR written_at < NEW.now - NEW.body);
END;

-- body: [[id, user_id, feature_name, status, priority, created_at, queued_at, waiting_since, scheduled_at, timer_at,
--         deadline_at, spec, turn], …]. They get consecutive seqs, in this order.
CREATE TEMP TRIGGER on_submit INSTEAD OF INSERT ON batch WHEN NEW.kind = 'submit'
BEGIN
    INSERT INTO job (id, user_id, feature_name, status, priority, created_at, queued_at, waiting_since, scheduled_at,
                     timer_at, deadline_at, spec, turn)
        SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7,
               value ->> 8, value ->> 9, value ->> 10, value ->> 11, value ->> 12
        FROM {rows} WHERE key NOT IN (SELECT n FROM turned_away);
    INSERT INTO outbox (job_id, origin, written_at)
        SELECT value ->> 0, NEW.origin, NEW.now FROM {rows}
        WHERE value ->> 3 = 1 AND key NOT IN (SELECT n FROM turned_away);
END;

-- body: as for `submit`. A job that is started in this commit has more values: the n of its start, and the scope, epoch,
-- lease, worker, timeout and region of the start. It is inserted as a running job, without an outbox row, unless the
-- epoch has been raised.
CREATE TEMP TRIGGER on_submit_started INSTEAD OF INSERT ON batch WHEN NEW.kind = 'submit_started'
BEGIN
    INSERT INTO starting (n, lease, worker, timeout, region)
        SELECT value ->> 13, value ->> 16, value ->> 17, value ->> 18, value ->> 19 FROM {rows}
        WHERE key NOT IN (SELECT n FROM turned_away)
        AND coalesce((SELECT number FROM epoch WHERE scope = value ->> 14), 0) = value ->> 15;
    INSERT INTO job (id, user_id, feature_name, status, priority, created_at, queued_at, waiting_since, scheduled_at,
                     timer_at, deadline_at, spec, turn, run, attempt, lease, worker, call_started_at, call_deadline,
                     call_region, started_at)
        SELECT value ->> 0, value ->> 1, value ->> 2, iif(s.n IS NULL, value ->> 3, 3), value ->> 4, value ->> 5,
               value ->> 6, value ->> 7, value ->> 8, iif(s.n IS NULL, value ->> 9, value ->> 10), value ->> 10,
               value ->> 11, value ->> 12, s.n IS NOT NULL, s.n IS NOT NULL, s.lease, s.worker,
               iif(s.n IS NULL, NULL, NEW.now), NEW.now + s.timeout, s.region, iif(s.n IS NULL, NULL, NEW.now)
        FROM {rows} LEFT JOIN starting AS s ON s.n = value ->> 13
        WHERE key NOT IN (SELECT n FROM turned_away);
    -- Usually all jobs are started, and their rows need not be parsed again.
    INSERT INTO outbox (job_id, origin, written_at)
        SELECT value ->> 0, NEW.origin, NEW.now
        FROM json_each(iif((SELECT count(*) FROM starting) < json_array_length(NEW.body), NEW.body, '[]'))
        WHERE value ->> 3 = 1 AND key NOT IN (SELECT n FROM turned_away)
        AND NOT EXISTS (SELECT 1 FROM starting WHERE n = value ->> 13);
    INSERT INTO answer SELECT 'begun', json_group_array(n) FROM starting HAVING count(*) > 0;
END;

-- body: [input, …], one for each submit. Must follow `submit` or `submit_started`, because it uses the last seqs. Answers
-- for the submits.
CREATE TEMP TRIGGER on_input INSTEAD OF INSERT ON batch WHEN NEW.kind = 'input'
BEGIN
    INSERT INTO answer VALUES ('submit', json_array((SELECT max(seq) FROM job), (SELECT max(id) FROM outbox)));
    INSERT INTO answer SELECT 'turned_away', json_group_array(json_array(t.n, t.why, t.job_id, job.seq))
        FROM turned_away AS t LEFT JOIN job ON job.id = t.job_id HAVING count(*) > 0;
    INSERT INTO job_input (seq, input)
        SELECT (SELECT max(seq) FROM job) - json_array_length(NEW.body) + (SELECT count(*) FROM turned_away)
               + row_number() OVER (), value
        FROM json_each(NEW.body) WHERE key NOT IN (SELECT n FROM turned_away);
END;

-- body: [[n, job_id, metadata, idempotency_key], …], of the submits that have either.
CREATE TEMP TRIGGER on_note INSTEAD OF INSERT ON batch WHEN NEW.kind = 'note'
BEGIN
    INSERT INTO job_note (seq, metadata, idempotency_key)
        SELECT job.seq, value ->> 2, value ->> 3
        FROM {rows} CROSS JOIN job ON job.id = value ->> 1
        WHERE value ->> 0 NOT IN (SELECT n FROM turned_away);
END;

-- ---------------------------------------------------------------- start

-- body: [[job_id, step, run, epoch, scope, lease, worker, timeout, region], …], with null for starts in `submit_started`.
CREATE TEMP TRIGGER on_start INSTEAD OF INSERT ON batch WHEN NEW.kind = 'start'
BEGIN
    INSERT INTO starting
        SELECT key, job.seq, value ->> 5, value ->> 6, value ->> 7, value ->> 8
        FROM {rows} CROSS JOIN job ON job.id = value ->> 0
        WHERE job.status = 1 AND job.run = value ->> 2 AND job.step = value ->> 1
        AND coalesce((SELECT number FROM epoch WHERE scope = value ->> 4), 0) = value ->> 3;
    UPDATE job SET
        status = 3, run = run + 1, attempt = attempt + 1, lease = s.lease, worker = s.worker,
        call_started_at = NEW.now, call_deadline = NEW.now + s.timeout, call_region = s.region,
        started_at = coalesce(started_at, NEW.now), timer_at = deadline_at
        FROM starting AS s WHERE job.seq = s.seq;
    INSERT INTO answer
        SELECT 'started', '[' || group_concat(
            '[' || s.n || ',' || {job_row} || ',' || json_quote(i.input) || ',' || json_quote({context}) || ']', ','
        ) || ']'
        FROM starting AS s CROSS JOIN job AS j ON j.seq = s.seq CROSS JOIN job_input AS i ON i.seq = s.seq
        HAVING count(*) > 0;
END;

-- ---------------------------------------------------------------- move

-- body: [[job_id, run, status, step, attempt, round, tells_line, timer_at, waiting_since, finished_at, retryable, error,
--         queued_at, priority, promoted_at, last_progress_at, spilled_at, goes_back, outcome, ended_at, service,
--         [plan, model, tokens_in, tokens_out, tokens_cached, units, ignored, price]], …]. The last four concern the
-- call that the move ends, and are null if it ends none.
CREATE TEMP TRIGGER on_move INSTEAD OF INSERT ON batch WHEN NEW.kind = 'move'
BEGIN
    INSERT INTO moving
        SELECT key, job.seq, job.id, job.run, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6,
               value ->> 7, value ->> 8, value ->> 9, value ->> 10, value ->> 11, value ->> 12, value ->> 13,
               value ->> 14, value ->> 15, value ->> 16, value ->> 17, value ->> 18, value ->> 19, value ->> 20,
               value ->> 21
        FROM {rows} CROSS JOIN job ON job.id = value ->> 0 WHERE job.run = value ->> 1;
    -- The usage ledger. Reads the jobs' rows before they change.
    INSERT INTO usage (ended_at, job_id, run, step, attempt, user_id, feature_name, service, region, outcome, waited,
                       slot, plan, group_path, model, tokens_in, tokens_out, tokens_cached, units, ignored, price)
        SELECT m.ended_at, j.id, j.run, j.step, j.attempt, j.user_id, j.feature_name, m.service, j.call_region,
               m.outcome, max(0, coalesce(j.call_started_at - j.waiting_since, 0)),
               max(0, coalesce(m.ended_at - j.call_started_at, 0)),
               m.reported ->> 0, m.reported ->> 1, m.reported ->> 2, m.reported ->> 3, m.reported ->> 4,
               m.reported ->> 5, m.reported ->> 6, m.reported ->> 7, m.reported ->> 8
        FROM moving AS m CROSS JOIN job AS j ON j.seq = m.seq WHERE m.outcome IS NOT NULL ORDER BY m.n;
    UPDATE job SET
        status = m.status, run = job.run + 1, step = m.step, attempt = m.attempt, round = m.round,
        timer_at = m.timer_at, waiting_since = m.waiting_since, finished_at = m.finished_at,
        retryable = m.retryable, error = m.error,
        queued_at = coalesce(m.queued_at, job.queued_at), priority = coalesce(m.priority, job.priority),
        promoted_at = coalesce(m.promoted_at, job.promoted_at),
        last_progress_at = coalesce(m.last_progress_at, job.last_progress_at),
        lease = NULL, worker = NULL, call_started_at = NULL, call_deadline = NULL, call_region = NULL,
        spilled_at = coalesce(m.spilled_at, job.spilled_at), goes_back = m.goes_back, progress = NULL
        FROM moving AS m WHERE job.seq = m.seq;
    INSERT INTO outbox (job_id, origin, written_at)
        SELECT job_id, NEW.origin, NEW.now FROM moving WHERE tells_line ORDER BY n;
    INSERT INTO answer SELECT 'moved', json_group_array(n) FROM moving HAVING count(*) > 0;
    INSERT INTO answer
        SELECT 'changes', '[' || group_concat('[' || o.id || ',' || {job_row} || ']', ',') || ']'
        FROM outbox AS o CROSS JOIN job AS j ON j.id = o.job_id
        WHERE o.id > (SELECT max(id) FROM outbox) - (SELECT count(*) FROM moving WHERE tells_line)
        HAVING count(*) > 0;
END;

-- body: [text, …]: the large texts of results, kept apart so that they are not parsed once per column. Must precede
-- `result`.
CREATE TEMP TRIGGER on_piece INSTEAD OF INSERT ON batch WHEN NEW.kind = 'piece'
BEGIN
    INSERT INTO piece SELECT key, value FROM json_each(NEW.body);
END;

-- body: [[n of the move, step, round, service, finished_at, lease], …]; data and metrics are the next two pieces.
CREATE TEMP TRIGGER on_result INSTEAD OF INSERT ON batch WHEN NEW.kind = 'result'
BEGIN
    INSERT INTO step_result (seq, step, round, service, data, metrics, finished_at, lease)
        SELECT m.seq, r.value ->> 1, r.value ->> 2, r.value ->> 3, data.value, metrics.value, r.value ->> 4, r.value ->> 5
        FROM {rows} AS r CROSS JOIN moving AS m ON m.n = r.value ->> 0
        CROSS JOIN piece AS data ON data.k = r.key * 2 CROSS JOIN piece AS metrics ON metrics.k = r.key * 2 + 1;
END;

-- body: [[n of the move, step, service, round, attempt, error, started_at, ended_at, worker, region], …]
CREATE TEMP TRIGGER on_failed INSTEAD OF INSERT ON rare WHEN NEW.kind = 'failed'
BEGIN
    INSERT INTO attempt (seq, run, step, service, round, attempt, error, started_at, ended_at, worker, region)
        SELECT m.seq, m.run, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7,
               value ->> 8, value ->> 9
        FROM {rows} CROSS JOIN moving AS m ON m.n = value ->> 0;
END;

-- body: [[n of the move, id, job_id, service, region, until, band], …]
CREATE TEMP TRIGGER on_hold INSTEAD OF INSERT ON rare WHEN NEW.kind = 'hold'
BEGIN
    INSERT INTO hold (id, job_id, service, region, until, band)
        SELECT coalesce(value ->> 1, m.job_id || ':' || m.run), value ->> 2, value ->> 3, value ->> 4, value ->> 5,
               value ->> 6
        FROM {rows} CROSS JOIN moving AS m ON m.n = value ->> 0;
END;

-- ---------------------------------------------------------------- progress, delete, and the manager's housekeeping

-- body: [[job_id, run, progress], …]
CREATE TEMP TRIGGER on_progress INSTEAD OF INSERT ON batch WHEN NEW.kind = 'progress'
BEGIN
    INSERT INTO answer
        SELECT 'progressed', json_group_array(p.key)
        FROM {rows} AS p CROSS JOIN job ON job.id = p.value ->> 0 WHERE job.run = p.value ->> 1
        HAVING count(*) > 0;
    UPDATE job SET progress = p.value ->> 2, last_progress_at = NEW.now
        FROM json_each(NEW.body) AS p WHERE job.id = p.value ->> 0 AND job.run = p.value ->> 1;
END;

-- body: [[job_id, run, band, queued_at, promoted_at], …]
CREATE TEMP TRIGGER on_prioritise INSTEAD OF INSERT ON rare WHEN NEW.kind = 'prioritise'
BEGIN
    INSERT INTO answer
        SELECT 'prioritised', json_group_array(p.key)
        FROM {rows} AS p CROSS JOIN job ON job.id = p.value ->> 0 WHERE job.run = p.value ->> 1
        HAVING count(*) > 0;
    UPDATE job SET priority = p.value ->> 2, queued_at = coalesce(p.value ->> 3, job.queued_at),
                   promoted_at = coalesce(p.value ->> 4, job.promoted_at)
        FROM json_each(NEW.body) AS p WHERE job.id = p.value ->> 0 AND job.run = p.value ->> 1;
END;

-- body: [[job_id, run, process], …]
CREATE TEMP TRIGGER on_adopt INSTEAD OF INSERT ON rare WHEN NEW.kind = 'adopt'
BEGIN
    INSERT INTO answer
        SELECT 'adopted', json_group_array(a.key)
        FROM {rows} AS a CROSS JOIN job ON job.id = a.value ->> 0
        WHERE job.run = a.value ->> 1 AND job.turn IS NOT NULL HAVING count(*) > 0;
    UPDATE job SET turn = a.value ->> 2
        FROM json_each(NEW.body) AS a
        WHERE job.id = a.value ->> 0 AND job.run = a.value ->> 1 AND job.turn IS NOT NULL;
END;

-- body: [job_id, …]
CREATE TEMP TRIGGER on_delete INSTEAD OF INSERT ON rare WHEN NEW.kind = 'delete'
BEGIN
    INSERT INTO answer
        SELECT 'deleted', json_group_array(d.key)
        FROM json_each(NEW.body) AS d CROSS JOIN job ON job.id = d.value WHERE job.status > 3
        HAVING count(*) > 0;
    INSERT INTO forgetting
        SELECT job.seq FROM json_each(NEW.body) AS d CROSS JOIN job ON job.id = d.value WHERE job.status > 3;
END;

-- Deletes one job with its results and attempts. Holds stay: the call may still be running.
CREATE TEMP TRIGGER on_forgetting INSTEAD OF INSERT ON forgetting
BEGIN
    DELETE FROM idempotency WHERE (user_id, key) IN (
        SELECT job.user_id, note.idempotency_key FROM job_note AS note JOIN job USING (seq) WHERE note.seq = NEW.seq
    );
    -- Clear the stored counts of its batch.
    UPDATE job_batch SET counts = NULL WHERE id IN (
        SELECT i.batch_id FROM job CROSS JOIN batch_item AS i ON i.job_id = job.id WHERE job.seq = NEW.seq
    );
    -- Files that were made by a job are swept, unless another job uses them.
    UPDATE file SET sweep_at = CASE WHEN job_id IS NULL THEN expires_at ELSE 0 END
        WHERE id IN (SELECT u.file_id FROM job CROSS JOIN file_use AS u ON u.job_id = job.id WHERE job.seq = NEW.seq);
    DELETE FROM file_use WHERE job_id = (SELECT id FROM job WHERE seq = NEW.seq);
    DELETE FROM job_note WHERE seq = NEW.seq;
    DELETE FROM job_input WHERE seq = NEW.seq;
    DELETE FROM step_result WHERE seq = NEW.seq;
    DELETE FROM attempt WHERE seq = NEW.seq;
    DELETE FROM job WHERE seq = NEW.seq;
END;

-- body: [outbox_id, …]
CREATE TEMP TRIGGER on_relayed INSTEAD OF INSERT ON batch WHEN NEW.kind = 'relayed'
BEGIN
    DELETE FROM outbox WHERE id IN (SELECT value FROM json_each(NEW.body));
END;

-- body: the time up to which holds end, capped by our own clock.
CREATE TEMP TRIGGER on_end_holds INSTEAD OF INSERT ON rare WHEN NEW.kind = 'end_holds'
BEGIN
    INSERT INTO answer SELECT 'ended', count(*) FROM hold WHERE until <= min(NEW.body, NEW.now);
    DELETE FROM hold WHERE until <= min(NEW.body, NEW.now);
END;

-- body: [finished_before, failed_before, limit]
CREATE TEMP TRIGGER on_prune INSTEAD OF INSERT ON rare WHEN NEW.kind = 'prune'
BEGIN
    DELETE FROM pruning;
    INSERT INTO pruning (seq)
        SELECT seq FROM (
            SELECT seq FROM job WHERE status = 4 AND status > 3 AND finished_at < NEW.body ->> 0
            UNION ALL
            SELECT seq FROM job WHERE status = 6 AND status > 3 AND finished_at < NEW.body ->> 0
            UNION ALL
            SELECT seq FROM job WHERE status = 5 AND status > 3 AND finished_at < NEW.body ->> 1
        ) LIMIT NEW.body ->> 2;
    INSERT INTO answer SELECT 'pruned', count(*) FROM pruning;
    INSERT INTO forgetting SELECT seq FROM pruning;
END;
