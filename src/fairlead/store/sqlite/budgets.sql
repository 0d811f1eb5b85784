-- Triggers for budgets, like those in admin.sql. `reserve`, `charge` and `held` belong to the starts and moves of a commit.

-- body: [[n of the start, job_id, run, budget, subject, start of the window, amount], …]. Must follow `start`.
CREATE TEMP TRIGGER on_reserve INSTEAD OF INSERT ON rare WHEN NEW.kind = 'reserve'
BEGIN
    INSERT INTO budget_counter (budget, subject, window_start, reserved)
        SELECT value ->> 3, value ->> 4, max(value ->> 5), sum(value ->> 6)
        FROM json_each(NEW.body) CROSS JOIN starting AS s ON s.n = value ->> 0
        GROUP BY 1, 2
        ON CONFLICT (budget, subject) DO UPDATE SET {rolled_counter}, reserved = reserved + excluded.reserved,
            used = iif(excluded.window_start > window_start, 0, used),
            calls = iif(excluded.window_start > window_start, 0, calls);
    INSERT INTO budget_reservation (job_id, run, budget, subject, amount)
        SELECT value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 6
        FROM json_each(NEW.body) CROSS JOIN starting AS s ON s.n = value ->> 0 WHERE TRUE
        ON CONFLICT (job_id, budget) DO UPDATE SET run = excluded.run, amount = amount + excluded.amount;
END;

-- body: [[n of the move, budget, subject, start of the window, amount], …], of the calls that moves end. Must follow
-- `move`. Frees what the moved jobs had reserved, and ends their holds.
CREATE TEMP TRIGGER on_charge INSTEAD OF INSERT ON rare WHEN NEW.kind = 'charge'
BEGIN
    UPDATE budget_counter SET reserved = reserved - (
        SELECT sum(r.amount) FROM moving AS m CROSS JOIN budget_reservation AS r ON r.job_id = m.job_id
        WHERE r.budget = budget_counter.budget AND r.subject = budget_counter.subject
    ) WHERE (budget, subject) IN (
        SELECT r.budget, r.subject FROM moving AS m CROSS JOIN budget_reservation AS r ON r.job_id = m.job_id
    );
    DELETE FROM budget_reservation WHERE job_id IN (SELECT job_id FROM moving);
    DELETE FROM budget_hold WHERE job_id IN (SELECT job_id FROM moving);
    INSERT INTO budget_counter (budget, subject, window_start, used, calls)
        SELECT value ->> 1, value ->> 2, max(value ->> 3), sum(value ->> 4), count(*)
        FROM json_each(NEW.body) CROSS JOIN moving AS m ON m.n = value ->> 0
        GROUP BY 1, 2
        ON CONFLICT (budget, subject) DO UPDATE SET {rolled_counter},
            used = iif(excluded.window_start > window_start, 0, used) + excluded.used,
            calls = iif(excluded.window_start > window_start, 0, calls) + excluded.calls;
END;

-- body: [[n of the move, job_id, run, budget, subject, seq], …]. Must follow `charge`. A job that this commit accepted
-- has its seq in its row only.
CREATE TEMP TRIGGER on_held INSTEAD OF INSERT ON rare WHEN NEW.kind = 'held'
BEGIN
    INSERT OR REPLACE INTO budget_hold (job_id, run, budget, subject, seq)
        SELECT value ->> 1, value ->> 2, value ->> 3, value ->> 4, j.seq
        FROM json_each(NEW.body) CROSS JOIN moving AS m ON m.n = value ->> 0 CROSS JOIN job AS j ON j.id = value ->> 1;
END;

-- body: [budget, subject, amount or null]
CREATE TEMP TRIGGER on_set_budget INSTEAD OF INSERT ON rare WHEN NEW.kind = 'set_budget'
BEGIN
    DELETE FROM budget_override WHERE budget = NEW.body ->> 0 AND subject = NEW.body ->> 1;
    INSERT INTO budget_override (budget, subject, amount)
        SELECT NEW.body ->> 0, NEW.body ->> 1, NEW.body ->> 2 WHERE NEW.body ->> 2 IS NOT NULL;
END;

-- body: [budget, subject, limit]. The timers loop moves the jobs.
CREATE TEMP TRIGGER on_release_held INSTEAD OF INSERT ON rare WHEN NEW.kind = 'release_held'
BEGIN
    INSERT INTO answer SELECT 'released_held', count(*) FROM (
        SELECT 1 FROM budget_hold WHERE budget = NEW.body ->> 0 AND subject = NEW.body ->> 1 LIMIT NEW.body ->> 2
    );
    UPDATE job SET timer_at = NEW.now FROM (
        SELECT job_id, run FROM budget_hold WHERE budget = NEW.body ->> 0 AND subject = NEW.body ->> 1
        ORDER BY seq LIMIT NEW.body ->> 2
    ) AS h WHERE job.id = h.job_id AND job.run = h.run AND job.timer_at > NEW.now;
    DELETE FROM budget_hold WHERE job_id IN (
        SELECT job_id FROM budget_hold WHERE budget = NEW.body ->> 0 AND subject = NEW.body ->> 1
        ORDER BY seq LIMIT NEW.body ->> 2
    );
END;

-- body: µs. Counters that are older, and have no reservations, are deleted.
CREATE TEMP TRIGGER on_sweep_budgets INSTEAD OF INSERT ON rare WHEN NEW.kind = 'sweep_budgets'
BEGIN
    INSERT INTO answer SELECT 'swept_budgets', count(*) FROM budget_reservation AS r
        WHERE NOT EXISTS (SELECT 1 FROM job AS j WHERE j.id = r.job_id AND j.run = r.run AND j.status = 3);
    DELETE FROM budget_reservation
        WHERE NOT EXISTS (SELECT 1 FROM job AS j WHERE j.id = job_id AND j.run = budget_reservation.run AND j.status = 3);
    UPDATE budget_counter SET reserved = (
        SELECT coalesce(sum(r.amount), 0) FROM budget_reservation AS r
        WHERE r.budget = budget_counter.budget AND r.subject = budget_counter.subject
    ) WHERE reserved <> 0;
    DELETE FROM budget_hold
        WHERE NOT EXISTS (SELECT 1 FROM job AS j WHERE j.id = job_id AND j.run = budget_hold.run);
    DELETE FROM budget_counter WHERE window_start < NEW.body AND reserved = 0;
END;

-- body: [budget, subject, start of the window, warned, event id, about, user or ''], whose endpoints get the event. Answers whether it was recorded.
CREATE TEMP TRIGGER on_warn_budget INSTEAD OF INSERT ON rare WHEN NEW.kind = 'warn_budget'
BEGIN
    INSERT INTO answer SELECT 'warned', EXISTS (
        SELECT 1 FROM budget_counter WHERE budget = NEW.body ->> 0 AND subject = NEW.body ->> 1
        AND window_start = NEW.body ->> 2 AND warned < NEW.body ->> 3
    );
    INSERT INTO webhook_delivery (id, event, receiver, user_id, created_at, endpoint_id, next_at, about)
        SELECT 'msg_' || (NEW.body ->> 4) || '_' || p.id, 'budget.threshold', p.id, NEW.body ->> 6, NEW.now, p.id, NEW.now,
               NEW.body ->> 5
        FROM budget_counter AS c CROSS JOIN webhook_endpoint AS p
        WHERE c.budget = NEW.body ->> 0 AND c.subject = NEW.body ->> 1 AND c.window_start = NEW.body ->> 2
        AND c.warned < NEW.body ->> 3
        AND (p.user_id IS NULL OR p.user_id = NEW.body ->> 6) AND p.url IS NOT NULL AND p.disabled_at IS NULL
        AND EXISTS (SELECT 1 FROM json_each(p.events) AS w WHERE w.value = 'budget.threshold')
        ON CONFLICT DO NOTHING;
    UPDATE budget_counter SET warned = NEW.body ->> 3
        WHERE budget = NEW.body ->> 0 AND subject = NEW.body ->> 1 AND window_start = NEW.body ->> 2
        AND warned < NEW.body ->> 3;
END;
