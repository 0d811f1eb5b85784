-- Triggers for the writes of files, like those in admin.sql: one row of the view `batch` for each write, and one answer.
-- Objects are removed only after a commit has doomed their artifact (state 2).

CREATE TEMP TABLE sweeping (file_id TEXT PRIMARY KEY) WITHOUT ROWID;

-- Deletes a file, and dooms the artifacts that no file names any more: its own, and those of its parts.
CREATE TEMP VIEW removing (file_id) AS SELECT NULL WHERE 0;
CREATE TEMP TRIGGER on_removing INSTEAD OF INSERT ON removing
BEGIN
    UPDATE artifact SET state = 2 WHERE id IN (SELECT artifact_id FROM file_part WHERE file_id = NEW.file_id);
    DELETE FROM file_part WHERE file_id = NEW.file_id;
    UPDATE artifact SET state = 2
        WHERE id = (SELECT artifact_id FROM file WHERE id = NEW.file_id)
        AND NOT EXISTS (SELECT 1 FROM file WHERE artifact_id = artifact.id AND id <> NEW.file_id);
    DELETE FROM file WHERE id = NEW.file_id;
END;

-- body: [[job_id, file_id], …], in the commit that inserts or moves the jobs, and after it. Jobs that do not exist are
-- left out: their submit was refused. One missing file fails the whole commit.
CREATE TEMP TRIGGER on_use_files INSTEAD OF INSERT ON rare WHEN NEW.kind = 'use_files'
BEGIN
    SELECT raise(ABORT, 'fairlead: a file is missing')
        FROM json_each(NEW.body) AS u CROSS JOIN job ON job.id = u.value ->> 0
        WHERE NOT EXISTS (SELECT 1 FROM file WHERE id = u.value ->> 1 AND state = 1);
    INSERT INTO file_use (job_id, file_id)
        SELECT u.value ->> 0, u.value ->> 1 FROM json_each(NEW.body) AS u CROSS JOIN job ON job.id = u.value ->> 0
        WHERE TRUE ON CONFLICT DO NOTHING;
    UPDATE file SET sweep_at = NULL
        WHERE sweep_at IS NOT NULL AND id IN (
            SELECT u.value ->> 1 FROM json_each(NEW.body) AS u CROSS JOIN file_use AS f
            ON f.job_id = u.value ->> 0 AND f.file_id = u.value ->> 1
        );
END;

-- body: [[n of the move, file_id], …]. Must follow `move`. Only for moves that were applied.
CREATE TEMP TRIGGER on_use_files_of_moves INSTEAD OF INSERT ON rare WHEN NEW.kind = 'use_files_of_moves'
BEGIN
    INSERT INTO rare (kind, body, now, origin)
        SELECT 'use_files', (
            SELECT json_group_array(json_array(m.job_id, u.value ->> 1))
            FROM json_each(NEW.body) AS u CROSS JOIN moving AS m ON m.n = u.value ->> 0
        ), NEW.now, NEW.origin;
END;

-- body: [id, user_id, artifact_id, name, content_type, purpose, created_at, size, sha256, expires_at, job_id, sweep_at]
CREATE TEMP TRIGGER on_create_file INSTEAD OF INSERT ON rare WHEN NEW.kind = 'create_file'
BEGIN
    INSERT INTO artifact (id, user_id, state) VALUES (NEW.body ->> 2, NEW.body ->> 1, 0) ON CONFLICT DO NOTHING;
    INSERT INTO file (id, user_id, artifact_id, state, name, content_type, purpose, created_at, expires_at, job_id,
                      sweep_at)
        VALUES (NEW.body ->> 0, NEW.body ->> 1, NEW.body ->> 2, 0, NEW.body ->> 3, NEW.body ->> 4, NEW.body ->> 5,
                NEW.body ->> 6, NEW.body ->> 9, NEW.body ->> 10, NEW.body ->> 11)
        ON CONFLICT DO NOTHING;
END;

-- body: [id, sweep_at]
CREATE TEMP TRIGGER on_renew_file INSTEAD OF INSERT ON rare WHEN NEW.kind = 'renew_file'
BEGIN
    UPDATE file SET sweep_at = NEW.body ->> 1 WHERE id = NEW.body ->> 0 AND state = 0;
    INSERT INTO answer VALUES ('renew_file', changes());
END;

-- body: [file_id, artifact_id, sweep_at]
CREATE TEMP TRIGGER on_create_part INSTEAD OF INSERT ON rare WHEN NEW.kind = 'create_part'
BEGIN
    INSERT INTO artifact (id, user_id, state)
        SELECT NEW.body ->> 1, user_id, 0 FROM file WHERE id = NEW.body ->> 0 AND state = 0;
    INSERT INTO file_part (file_id, artifact_id)
        SELECT id, NEW.body ->> 1 FROM file WHERE id = NEW.body ->> 0 AND state = 0;
    UPDATE file SET sweep_at = NEW.body ->> 2 WHERE id = NEW.body ->> 0 AND state = 0;
    INSERT INTO answer VALUES ('create_part', changes());
END;

-- body: [file_id, artifact_id, at, size]
CREATE TEMP TRIGGER on_finish_part INSTEAD OF INSERT ON rare WHEN NEW.kind = 'finish_part'
BEGIN
    UPDATE file_part SET at = NEW.body ->> 2, size = NEW.body ->> 3
        WHERE file_id = NEW.body ->> 0 AND artifact_id = NEW.body ->> 1 AND size IS NULL
        AND (SELECT coalesce(sum(size), 0) FROM file_part WHERE file_id = NEW.body ->> 0) = NEW.body ->> 2;
    INSERT INTO answer VALUES ('finish_part', changes());
END;

-- body: as for create_file. Answers the id of the artifact that has the bytes.
CREATE TEMP TRIGGER on_complete_file INSTEAD OF INSERT ON rare WHEN NEW.kind = 'complete_file'
BEGIN
    INSERT INTO answer SELECT 'complete_file', (
        SELECT json_quote(coalesce((
            SELECT a.id FROM artifact AS a
            WHERE a.user_id = f.user_id AND a.sha256 = NEW.body ->> 8 AND a.size = NEW.body ->> 7 AND a.state = 1
            ORDER BY a.id LIMIT 1
        ), f.artifact_id)) FROM file AS f WHERE f.id = NEW.body ->> 0 AND f.state = 0
    );
    UPDATE artifact SET
        size = NEW.body ->> 7, sha256 = NEW.body ->> 8,
        state = CASE (SELECT value ->> '$' FROM answer WHERE kind = 'complete_file' ORDER BY rowid DESC LIMIT 1)
            WHEN id THEN 1 ELSE 2 END
        WHERE id = (SELECT artifact_id FROM file WHERE id = NEW.body ->> 0 AND state = 0);
    UPDATE artifact SET state = 2 WHERE id IN (
        SELECT p.artifact_id FROM file_part AS p JOIN file AS f ON f.id = p.file_id
        WHERE f.id = NEW.body ->> 0 AND f.state = 0
    );
    DELETE FROM file_part
        WHERE file_id = NEW.body ->> 0 AND EXISTS (SELECT 1 FROM file WHERE id = NEW.body ->> 0 AND state = 0);
    UPDATE file SET
        state = 1, name = NEW.body ->> 3, content_type = NEW.body ->> 4, purpose = NEW.body ->> 5,
        size = NEW.body ->> 7, sha256 = NEW.body ->> 8, expires_at = NEW.body ->> 9, sweep_at = NEW.body ->> 11,
        artifact_id = (SELECT value ->> '$' FROM answer WHERE kind = 'complete_file' ORDER BY rowid DESC LIMIT 1)
        WHERE id = NEW.body ->> 0 AND state = 0;
END;

-- body: id. Answers 1 if it was deleted, 0 if a job uses it, NULL if there is none.
CREATE TEMP TRIGGER on_delete_file INSTEAD OF INSERT ON rare WHEN NEW.kind = 'delete_file'
BEGIN
    INSERT INTO answer SELECT 'delete_file', (
        SELECT NOT EXISTS (SELECT 1 FROM file_use WHERE file_id = file.id) FROM file WHERE id = NEW.body
    );
    INSERT INTO removing
        SELECT id FROM file WHERE id = NEW.body AND NOT EXISTS (SELECT 1 FROM file_use WHERE file_id = file.id);
END;

-- body: [now, limit]. Answers [files examined, [doomed artifact, …]].
CREATE TEMP TRIGGER on_sweep_files INSTEAD OF INSERT ON rare WHEN NEW.kind = 'sweep_files'
BEGIN
    DELETE FROM sweeping;
    INSERT INTO sweeping
        SELECT id FROM file WHERE sweep_at <= min(NEW.body ->> 0, NEW.now) ORDER BY sweep_at LIMIT NEW.body ->> 1;
    UPDATE file SET sweep_at = NULL
        WHERE id IN (SELECT s.file_id FROM sweeping AS s WHERE s.file_id IN (SELECT file_id FROM file_use));
    INSERT INTO removing
        SELECT file_id FROM sweeping AS s WHERE NOT EXISTS (SELECT 1 FROM file_use AS u WHERE u.file_id = s.file_id);
    INSERT INTO answer SELECT 'sweep_files', json_array((SELECT count(*) FROM sweeping), (
        SELECT json_group_array(id) FROM (SELECT id FROM artifact WHERE state = 2 ORDER BY id LIMIT NEW.body ->> 1)
    ));
END;

-- body: [artifact_id, …]
CREATE TEMP TRIGGER on_forget_artifacts INSTEAD OF INSERT ON rare WHEN NEW.kind = 'forget_artifacts'
BEGIN
    DELETE FROM artifact WHERE state = 2 AND id IN (SELECT value FROM json_each(NEW.body));
END;
