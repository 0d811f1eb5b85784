-- Triggers for the writes of the dashboard, like those in admin.sql. These writes have no answers and are never refused.

-- body: [hash, key_id, expires_at, kept of this key, kept of all]
CREATE TEMP TRIGGER on_open_session INSTEAD OF INSERT ON rare WHEN NEW.kind = 'open_session'
BEGIN
    DELETE FROM dashboard_session WHERE expires_at <= NEW.now;
    DELETE FROM dashboard_session WHERE hash IN (
        SELECT hash FROM dashboard_session WHERE key_id = NEW.body ->> 1
        ORDER BY expires_at DESC, hash LIMIT -1 OFFSET NEW.body ->> 3
    );
    DELETE FROM dashboard_session WHERE hash IN (
        SELECT hash FROM dashboard_session ORDER BY expires_at DESC, hash LIMIT -1 OFFSET NEW.body ->> 4
    );
    INSERT INTO dashboard_session (hash, key_id, expires_at) VALUES (NEW.body ->> 0, NEW.body ->> 1, NEW.body ->> 2)
        ON CONFLICT DO NOTHING;
END;

-- body: hash
CREATE TEMP TRIGGER on_close_session INSTEAD OF INSERT ON rare WHEN NEW.kind = 'close_session'
BEGIN
    DELETE FROM dashboard_session WHERE hash = NEW.body;
END;

-- body: [process, keep from, [[minute, service, about], …]]
CREATE TEMP TRIGGER on_activity INSTEAD OF INSERT ON rare WHEN NEW.kind = 'activity'
BEGIN
    DELETE FROM activity WHERE minute < NEW.body ->> 1;
    INSERT INTO activity (minute, process, service, about)
        SELECT value ->> 0, NEW.body ->> 0, value ->> 1, value ->> 2 FROM json_each(NEW.body, '$[2]') WHERE TRUE
        ON CONFLICT (minute, process, service) DO UPDATE SET about = excluded.about;
END;
