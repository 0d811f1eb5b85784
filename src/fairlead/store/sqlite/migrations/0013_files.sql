-- Files in the object store. All tables are new, so a process of the previous release keeps running. If it deletes a job
-- that uses files, the files stay.

-- One row for each object. States: 0 being written, 1 whole, 2 to be removed.
CREATE TABLE artifact (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL,
    state INTEGER NOT NULL,
    size INTEGER,
    sha256 TEXT
) WITHOUT ROWID;
-- Equal bytes of one user.
CREATE INDEX artifact_same ON artifact (user_id, sha256) WHERE state = 1;
CREATE INDEX artifact_doomed ON artifact (id) WHERE state = 2;

-- `job_id` is the job that the file was made by or for.
CREATE TABLE file (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL,
    artifact_id TEXT NOT NULL,
    state INTEGER NOT NULL,      -- 0 being uploaded, 1 complete
    name TEXT NOT NULL,
    content_type TEXT NOT NULL,
    purpose TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    size INTEGER,
    sha256 TEXT,
    expires_at INTEGER,
    job_id TEXT,
    sweep_at INTEGER             -- when the sweep looks at it; NULL while a job uses it
) WITHOUT ROWID;
-- list_files of one user. Ids are in the order of creation.
CREATE INDEX file_by_user ON file (user_id, id) WHERE job_id IS NULL;
-- SweepFiles.
CREATE INDEX file_sweep ON file (sweep_at) WHERE sweep_at IS NOT NULL;
-- Whether a file names an artifact.
CREATE INDEX file_artifact ON file (artifact_id);

-- The parts of an upload. `size` is NULL until the part is whole.
CREATE TABLE file_part (
    file_id TEXT NOT NULL,
    artifact_id TEXT NOT NULL,
    at INTEGER,
    size INTEGER,
    PRIMARY KEY (file_id, artifact_id)
) WITHOUT ROWID;

-- This job needs this file.
CREATE TABLE file_use (
    job_id TEXT NOT NULL,
    file_id TEXT NOT NULL,
    PRIMARY KEY (job_id, file_id)
) WITHOUT ROWID;
CREATE INDEX file_use_file ON file_use (file_id);

-- Random texts that all processes share, such as the key of the tickets in URLs of files.
CREATE TABLE secret (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO secret VALUES ('files', lower(hex(randomblob(32))));
