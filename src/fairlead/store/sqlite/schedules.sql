-- Triggers for the writes of schedules, like those in admin.sql.

-- body: [id, user_id, name, declared, spec, timing, secret, created_at, revision, next_at, last_at, waiting_at, paused_at,
-- the revision to replace or null]. Answers null if refused.
CREATE TEMP TRIGGER on_schedule INSTEAD OF INSERT ON rare WHEN NEW.kind = 'schedule'
BEGIN
    INSERT INTO answer SELECT 'schedule', CASE
        WHEN (SELECT revision FROM schedule WHERE id = NEW.body ->> 0) IS NEW.body ->> 13 THEN json_array(
            NEW.body ->> 0, NEW.body ->> 1, NEW.body ->> 2, NEW.body ->> 3, NEW.body ->> 4, NEW.body ->> 5, NEW.body ->> 6,
            NEW.body ->> 7, coalesce(NEW.body ->> 13, 0) + 1, NEW.body ->> 9, NEW.body ->> 10, NEW.body ->> 11,
            NEW.body ->> 12)
        ELSE 'null' END;
    INSERT INTO schedule (id, user_id, name, declared, spec, timing, secret, created_at, revision, next_at, last_at,
                          waiting_at, paused_at)
        SELECT NEW.body ->> 0, NEW.body ->> 1, NEW.body ->> 2, NEW.body ->> 3, NEW.body ->> 4, NEW.body ->> 5, NEW.body ->> 6,
               NEW.body ->> 7, coalesce(NEW.body ->> 13, 0) + 1, NEW.body ->> 9, NEW.body ->> 10, NEW.body ->> 11,
               NEW.body ->> 12
        WHERE (SELECT revision FROM schedule WHERE id = NEW.body ->> 0) IS NEW.body ->> 13
        ON CONFLICT (id) DO UPDATE SET
            user_id = excluded.user_id, name = excluded.name, declared = excluded.declared, spec = excluded.spec,
            timing = excluded.timing, revision = excluded.revision, next_at = excluded.next_at, last_at = excluded.last_at,
            waiting_at = excluded.waiting_at, paused_at = excluded.paused_at;
END;

-- body: [schedule as for `schedule`, …]
CREATE TEMP TRIGGER on_declare_schedules INSTEAD OF INSERT ON rare WHEN NEW.kind = 'declare_schedules'
BEGIN
    DELETE FROM schedule_run WHERE schedule_id IN (
        SELECT id FROM schedule WHERE declared AND id NOT IN (SELECT value ->> 0 FROM json_each(NEW.body))
    );
    DELETE FROM schedule WHERE declared AND id NOT IN (SELECT value ->> 0 FROM json_each(NEW.body));
    INSERT INTO schedule (id, user_id, name, declared, spec, timing, secret, created_at, revision, next_at)
        SELECT value ->> 0, value ->> 1, value ->> 2, 1, value ->> 4, value ->> 5, value ->> 6, NEW.now, 1, value ->> 9
        FROM json_each(NEW.body) WHERE TRUE
        ON CONFLICT (id) DO UPDATE SET
            user_id = excluded.user_id, name = excluded.name, declared = 1, spec = excluded.spec, timing = excluded.timing,
            revision = revision + 1,
            next_at = CASE WHEN timing = excluded.timing THEN next_at ELSE excluded.next_at END
        WHERE user_id <> excluded.user_id OR NOT declared OR spec <> excluded.spec OR timing <> excluded.timing;
END;

-- body: id
CREATE TEMP TRIGGER on_delete_schedule INSTEAD OF INSERT ON rare WHEN NEW.kind = 'delete_schedule'
BEGIN
    DELETE FROM schedule_run WHERE schedule_id = NEW.body;
    DELETE FROM schedule WHERE id = NEW.body;
    INSERT INTO answer VALUES ('delete_schedule', changes());
END;

-- body: [id, revision or null, next_at, last_at, waiting_at, job_id or null, [[outcome, at, due_at, job_id, count, detail], …],
-- runs to keep]. Must follow `submit`. The commit fails if the schedule has moved. Changes nothing if there is no such job.
CREATE TEMP TRIGGER on_fire INSTEAD OF INSERT ON rare WHEN NEW.kind = 'fire'
BEGIN
    SELECT RAISE(ABORT, 'the schedule has moved') WHERE NOT EXISTS (
        SELECT 1 FROM schedule WHERE id = NEW.body ->> 0 AND (NEW.body ->> 1 IS NULL OR (
            revision = NEW.body ->> 1 AND paused_at IS NULL AND (next_at <= NEW.now OR waiting_at IS NOT NULL)
        ))
    );
    INSERT INTO answer SELECT 'fire', NEW.body ->> 5 IS NULL OR EXISTS (SELECT 1 FROM job WHERE id = NEW.body ->> 5);
    UPDATE schedule SET revision = revision + 1, next_at = NEW.body ->> 2, last_at = NEW.body ->> 3,
                        waiting_at = NEW.body ->> 4
        WHERE id = NEW.body ->> 0 AND NEW.body ->> 1 IS NOT NULL
        AND (NEW.body ->> 5 IS NULL OR EXISTS (SELECT 1 FROM job WHERE id = NEW.body ->> 5));
    INSERT INTO schedule_run (schedule_id, outcome, at, due_at, job_id, count, detail)
        SELECT NEW.body ->> 0, value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5
        FROM json_each(NEW.body, '$[6]')
        WHERE NEW.body ->> 5 IS NULL OR EXISTS (SELECT 1 FROM job WHERE id = NEW.body ->> 5);
    DELETE FROM schedule_run WHERE schedule_id = NEW.body ->> 0 AND seq <= (
        SELECT seq FROM schedule_run WHERE schedule_id = NEW.body ->> 0 ORDER BY seq DESC LIMIT 1 OFFSET NEW.body ->> 7
    );
END;
