-- Files in the object store. All tables are new, so a process of the previous release keeps running. If it deletes a job
-- that uses files, the files stay.

-- One row for each object. States: 0 being written, 1 whole, 2 to be removed.
CREATE TABLE fairlead.artifact (
    id text COLLATE "C" PRIMARY KEY,
    user_id text COLLATE "C" NOT NULL,
    state smallint NOT NULL,
    size bigint,
    sha256 text COLLATE "C"
);
-- Equal bytes of one user.
CREATE INDEX artifact_same ON fairlead.artifact (user_id, sha256) WHERE state = 1;
CREATE INDEX artifact_doomed ON fairlead.artifact (id) WHERE state = 2;

-- `job_id` is the job that the file was made by or for.
CREATE TABLE fairlead.file (
    id text COLLATE "C" PRIMARY KEY,
    user_id text COLLATE "C" NOT NULL,
    artifact_id text COLLATE "C" NOT NULL,
    state smallint NOT NULL,     -- 0 being uploaded, 1 complete
    name text NOT NULL,
    content_type text NOT NULL,
    purpose text NOT NULL,
    created_at bigint NOT NULL,
    size bigint,
    sha256 text,
    expires_at bigint,
    job_id text,
    sweep_at bigint              -- when the sweep looks at it; NULL while a job uses it
);
-- list_files of one user. Ids are in the order of creation.
CREATE INDEX file_by_user ON fairlead.file (user_id, id) WHERE job_id IS NULL;
-- SweepFiles.
CREATE INDEX file_sweep ON fairlead.file (sweep_at) WHERE sweep_at IS NOT NULL;
-- Whether a file names an artifact.
CREATE INDEX file_artifact ON fairlead.file (artifact_id);

-- The parts of an upload. `size` is NULL until the part is whole.
CREATE TABLE fairlead.file_part (
    file_id text COLLATE "C" NOT NULL,
    artifact_id text COLLATE "C" NOT NULL,
    at bigint,
    size bigint,
    PRIMARY KEY (file_id, artifact_id)
);

-- This job needs this file.
CREATE TABLE fairlead.file_use (
    job_id text COLLATE "C" NOT NULL,
    file_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (job_id, file_id)
);
CREATE INDEX file_use_file ON fairlead.file_use (file_id);

-- Random texts that all processes share, such as the key of the tickets in URLs of files.
CREATE TABLE fairlead.secret (
    name text COLLATE "C" PRIMARY KEY,
    value text NOT NULL
);
INSERT INTO fairlead.secret VALUES ('files', replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''));
