CREATE SCHEMA fairlead;
CREATE TABLE fairlead.activity (
    minute integer NOT NULL,
    process text NOT NULL COLLATE pg_catalog."C",
    service text NOT NULL COLLATE pg_catalog."C",
    about text NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000');
CREATE TABLE fairlead.adaptive_limit (
    service text NOT NULL COLLATE pg_catalog."C",
    slots integer NOT NULL,
    best double precision,
    history text NOT NULL
);
CREATE TABLE fairlead.api_key (
    id text NOT NULL COLLATE pg_catalog."C",
    role text NOT NULL,
    user_id text,
    name text NOT NULL,
    hash text NOT NULL COLLATE pg_catalog."C",
    created_at bigint NOT NULL,
    revoked_at bigint
);
CREATE TABLE fairlead.attempt (
    seq bigint NOT NULL,
    run integer NOT NULL,
    step integer NOT NULL,
    service text NOT NULL,
    round integer NOT NULL,
    attempt integer NOT NULL,
    error text NOT NULL,
    started_at bigint,
    ended_at bigint NOT NULL,
    worker text,
    region text
);
CREATE TABLE fairlead.audit (
    id text NOT NULL COLLATE pg_catalog."C",
    at bigint NOT NULL,
    who text NOT NULL,
    action text NOT NULL COLLATE pg_catalog."C",
    target text NOT NULL,
    details text NOT NULL,
    outcome text
);
CREATE TABLE fairlead.batch_item (
    batch_id text NOT NULL COLLATE pg_catalog."C",
    item integer NOT NULL,
    job_id text NOT NULL COLLATE pg_catalog."C",
    custom_id text COLLATE pg_catalog."C"
);
CREATE TABLE fairlead.dashboard_session (
    hash text NOT NULL COLLATE pg_catalog."C",
    key_id text NOT NULL COLLATE pg_catalog."C",
    expires_at bigint NOT NULL
);
CREATE TABLE fairlead.epoch (
    scope text NOT NULL COLLATE pg_catalog."C",
    number bigint NOT NULL,
    server text DEFAULT ''::text NOT NULL,
    rebuild_asked boolean DEFAULT false NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE fairlead.hold (
    id text NOT NULL COLLATE pg_catalog."C",
    job_id text NOT NULL COLLATE pg_catalog."C",
    service text NOT NULL,
    region text,
    until bigint NOT NULL,
    band smallint DEFAULT 2 NOT NULL
);
CREATE TABLE fairlead.idempotency (
    user_id text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    body_hash text,
    job_id text NOT NULL COLLATE pg_catalog."C"
);
CREATE TABLE fairlead.job (
    seq bigint NOT NULL,
    created_at bigint NOT NULL,
    queued_at bigint,
    waiting_since bigint,
    scheduled_at bigint,
    promoted_at bigint,
    started_at bigint,
    finished_at bigint,
    last_progress_at bigint,
    timer_at bigint,
    deadline_at bigint,
    call_started_at bigint,
    call_deadline bigint,
    run integer DEFAULT 0 NOT NULL,
    step integer DEFAULT 0 NOT NULL,
    attempt integer DEFAULT 0 NOT NULL,
    round integer DEFAULT 0 NOT NULL,
    status smallint NOT NULL,
    ended smallint,
    priority smallint NOT NULL,
    retryable boolean,
    id text NOT NULL COLLATE pg_catalog."C",
    user_id text NOT NULL COLLATE pg_catalog."C",
    feature_name text NOT NULL COLLATE pg_catalog."C",
    lease text COLLATE pg_catalog."C",
    worker text COLLATE pg_catalog."C",
    error text,
    progress text,
    spec text NOT NULL,
    idempotency_key text COLLATE pg_catalog."C",
    metadata text,
    input text NOT NULL,
    result_about text,
    result_data text,
    result_metrics text,
    call_region text COLLATE pg_catalog."C",
    spilled_at bigint,
    goes_back text,
    turn text COLLATE pg_catalog."C"
)
WITH (fillfactor='50', toast_tuple_target='512', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='10000', autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_analyze_scale_factor='0.02', autovacuum_vacuum_cost_delay='1');
CREATE TABLE fairlead.job_batch (
    id text NOT NULL COLLATE pg_catalog."C",
    user_id text NOT NULL COLLATE pg_catalog."C",
    name text,
    metadata text,
    created_at bigint NOT NULL,
    total integer NOT NULL,
    idempotency_key text COLLATE pg_catalog."C",
    body_hash text,
    finished_at bigint,
    counts text
);
ALTER TABLE fairlead.job ALTER COLUMN seq ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME fairlead.job_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE fairlead.outbox (
    id bigint NOT NULL,
    written_at bigint NOT NULL,
    job_id text COLLATE pg_catalog."C",
    origin text NOT NULL COLLATE pg_catalog."C",
    service text COLLATE pg_catalog."C",
    band smallint,
    job_ids text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='5000', autovacuum_vacuum_insert_threshold='-1', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='100000', autovacuum_vacuum_cost_delay='0');
ALTER TABLE ONLY fairlead.outbox ALTER COLUMN job_ids SET STORAGE EXTERNAL;
CREATE SEQUENCE fairlead.outbox_id
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
CREATE TABLE fairlead.process (
    name text NOT NULL COLLATE pg_catalog."C",
    seen_at bigint NOT NULL,
    drain_asked boolean DEFAULT false NOT NULL,
    about text NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='500');
CREATE TABLE fairlead.rules (
    version integer NOT NULL,
    declared text NOT NULL
);
CREATE TABLE fairlead.schema_version (
    number integer NOT NULL
);
CREATE TABLE fairlead.service_override (
    service text NOT NULL COLLATE pg_catalog."C",
    slots integer,
    paused boolean
);
CREATE TABLE fairlead.step_result (
    seq bigint NOT NULL,
    step integer NOT NULL,
    round integer NOT NULL,
    service text NOT NULL,
    data text NOT NULL,
    metrics text NOT NULL,
    finished_at bigint NOT NULL,
    lease text
);
CREATE TABLE fairlead.ticket (
    hash text NOT NULL COLLATE pg_catalog."C",
    key_id text NOT NULL COLLATE pg_catalog."C",
    expires_at bigint NOT NULL
);
INSERT INTO fairlead.attempt VALUES (2, 1, 0, 'flaky', 0, 1, '{"code":"PERMANENT","message":"wrong input"}', 1794882285573998, 1794882285576526, 'vm:26166:87bb4975', NULL);
INSERT INTO fairlead.attempt VALUES (3, 1, 0, 'flaky', 0, 1, '{"code":"EXCEPTION","message":"ConnectionError: not today"}', 1794882285679568, 1794882285683901, 'vm:26166:87bb4975', NULL);
INSERT INTO fairlead.attempt VALUES (21, 1, 0, 'slow_retry', 0, 1, '{"code":"EXCEPTION","message":"ConnectionError: not today","retry_in":1.0}', 1794882286040994, 1794882286052499, 'vm:26166:87bb4975', NULL);
INSERT INTO fairlead.audit VALUES ('01a1e752-3090-7108-9651-b26305043868', 1794882285712282, 'fixture', 'service.pause', 'second', '{}', '{"status":"done"}');
INSERT INTO fairlead.audit VALUES ('01a1e752-30bc-7243-b8b8-13628a72d008', 1794882285756920, 'fixture', 'service.pause', 'pooled', '{}', '{"status":"done"}');
INSERT INTO fairlead.batch_item VALUES ('01a1e752-3185-720b-97c7-3d47d75ff46f', 0, '01a1e752-3185-720b-97c7-3d44efcf11d7', NULL);
INSERT INTO fairlead.batch_item VALUES ('01a1e752-3185-720b-97c7-3d47d75ff46f', 1, '01a1e752-3185-720b-97c7-3d4589c09434', NULL);
INSERT INTO fairlead.batch_item VALUES ('01a1e752-3185-720b-97c7-3d47d75ff46f', 2, '01a1e752-3185-720b-97c7-3d46940addbc', NULL);
INSERT INTO fairlead.epoch VALUES ('leader:main', 1, '', false);
INSERT INTO fairlead.epoch VALUES ('pool:gpu', 1, '814933a487fecec786c3f17d5e3319add260daaf/40c55791a74076633126f77b9e8c62f1cdce11ab', false);
INSERT INTO fairlead.epoch VALUES ('service:crash', 1, '814933a487fecec786c3f17d5e3319add260daaf/40c55791a74076633126f77b9e8c62f1cdce11ab', false);
INSERT INTO fairlead.epoch VALUES ('service:echo', 1, '814933a487fecec786c3f17d5e3319add260daaf/40c55791a74076633126f77b9e8c62f1cdce11ab', false);
INSERT INTO fairlead.epoch VALUES ('service:flaky', 1, '814933a487fecec786c3f17d5e3319add260daaf/40c55791a74076633126f77b9e8c62f1cdce11ab', false);
INSERT INTO fairlead.epoch VALUES ('service:second', 1, '814933a487fecec786c3f17d5e3319add260daaf/40c55791a74076633126f77b9e8c62f1cdce11ab', false);
INSERT INTO fairlead.epoch VALUES ('service:slow_retry', 1, '814933a487fecec786c3f17d5e3319add260daaf/40c55791a74076633126f77b9e8c62f1cdce11ab', false);
INSERT INTO fairlead.job OVERRIDING SYSTEM VALUE VALUES (1, 1794882284506343, 1794882284506343, NULL, NULL, NULL, 1794882285284018, 1794882285461913, 1794882285461913, NULL, NULL, NULL, NULL, 4, 2, 0, 0, 4, 4, 2, NULL, '01a1e752-2bda-722a-9598-de60264889b5', 'ada', 'both', NULL, NULL, NULL, NULL, '[["echo","second"],2,null,1.0,null,null,"default"]', NULL, NULL, '{"value":1}', '[1,"second",0,1794882285461913,"1:11364621085"]', '{"service":"second","value":1}', '{"execution_time_ms":0.029}', NULL, NULL, NULL, NULL);
INSERT INTO fairlead.job OVERRIDING SYSTEM VALUE VALUES (2, 1794882285475586, 1794882285475586, NULL, NULL, NULL, 1794882285573998, 1794882285576526, NULL, NULL, NULL, NULL, NULL, 2, 0, 1, 0, 5, 5, 2, false, '01a1e752-2fa3-72be-9e39-74fcd0661e24', 'ada', 'flaky', NULL, NULL, '{"code":"PERMANENT","message":"wrong input"}', NULL, '[["flaky"],2,null,1.0,null,null,"default"]', NULL, NULL, '{"permanent":true}', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO fairlead.job OVERRIDING SYSTEM VALUE VALUES (3, 1794882285656730, 1794882285656730, NULL, NULL, NULL, 1794882285679568, 1794882285683901, NULL, NULL, NULL, NULL, NULL, 2, 0, 1, 0, 5, 5, 2, true, '01a1e752-3058-7618-a74a-09e2065e37a5', 'ada', 'flaky', NULL, NULL, '{"code":"EXCEPTION","message":"ConnectionError: not today"}', NULL, '[["flaky"],2,null,1.0,null,null,"default"]', NULL, NULL, '{"permanent":false}', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO fairlead.job OVERRIDING SYSTEM VALUE VALUES (4, 1794882285778364, 1794882285778364, 1794882285811004, NULL, NULL, 1794882285804801, NULL, 1794882285811004, NULL, NULL, NULL, NULL, 2, 1, 0, 0, 1, NULL, 1, NULL, '01a1e752-30d2-70e4-b72f-c93bcf5693dc', 'bob', 'both', NULL, NULL, NULL, NULL, '[["echo","second"],1,null,1.0,null,null,"given"]', NULL, NULL, '{"value":2}', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO fairlead.job OVERRIDING SYSTEM VALUE VALUES (5, 1794882285850326, 1794882285850326, 1794882285850326, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 1, NULL, 3, NULL, '01a1e752-311a-7312-a321-7e1ca741935a', 'user-0', 'pooled', NULL, NULL, NULL, NULL, '[["pooled"],3,null,1.0,null,null,"given"]', NULL, NULL, '{"value":0}', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO fairlead.job OVERRIDING SYSTEM VALUE VALUES (6, 1794882285880831, 1794882285880831, 1794882285880831, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 1, NULL, 2, NULL, '01a1e752-3138-717c-bea7-7312477d9dd4', 'user-0', 'second', NULL, NULL, NULL, NULL, '[["second"],2,null,1.0,null,null,"default"]', NULL, NULL, '{"value":0}', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO fairlead.job OVERRIDING SYSTEM VALUE VALUES (7, 1794882285889320, 1794882285889320, 1794882285889320, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 1, NULL, 2, NULL, '01a1e752-3141-762a-a57b-8d53fae58b3d', 'user-1', 'pooled', NULL, NULL, NULL, NULL, '[["pooled"],2,null,1.0,null,null,"given"]', NULL, NULL, '{"value":1}', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO fairlead.job OVERRIDING SYSTEM VALUE VALUES (8, 1794882285892014, 1794882285892014, 1794882285892014, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 1, NULL, 2, NULL, '01a1e752-3144-741e-a1a3-be96bc37b4bb', 'user-1', 'second', NULL, NULL, NULL, NULL, '[["second"],2,null,1.0,null,null,"default"]', NULL, NULL, '{"value":1}', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO fairlead.job OVERRIDING SYSTEM VALUE VALUES (9, 1794882285901050, 1794882285901050, 1794882285901050, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 1, NULL, 1, NULL, '01a1e752-314d-7208-9ee2-73d0289a20fe', 'user-2', 'pooled', NULL, NULL, NULL, NULL, '[["pooled"],1,null,1.0,null,null,"given"]', NULL, NULL, '{"value":2}', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO fairlead.job OVERRIDING SYSTEM VALUE VALUES (10, 1794882285906312, 1794882285906312, 1794882285906312, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 1, NULL, 2, NULL, '01a1e752-3152-76ce-9f94-e9e2188bdb30', 'user-0', 'second', NULL, NULL, NULL, NULL, '[["second"],2,null,1.0,null,null,"default"]', NULL, NULL, '{"value":2}', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO fairlead.job OVERRIDING SYSTEM VALUE VALUES (11, 1794882285911741, 1794882285911741, 1794882285911741, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 1, NULL, 3, NULL, '01a1e752-3157-703a-9421-a7ff540016af', 'user-0', 'pooled', NULL, NULL, NULL, NULL, '[["pooled"],3,null,1.0,null,null,"given"]', NULL, NULL, '{"value":3}', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO fairlead.job OVERRIDING SYSTEM VALUE VALUES (12, 1794882285927398, 1794882285927398, 1794882285927398, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 1, NULL, 2, NULL, '01a1e752-3167-746e-be19-38bb19f2051d', 'user-1', 'second', NULL, NULL, NULL, NULL, '[["second"],2,null,1.0,null,null,"default"]', NULL, NULL, '{"value":3}', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO fairlead.job OVERRIDING SYSTEM VALUE VALUES (13, 1794882285931099, 1794882285931099, 1794882285931099, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 1, NULL, 2, NULL, '01a1e752-316b-77e9-b3c0-cb71b22289b4', 'user-1', 'pooled', NULL, NULL, NULL, NULL, '[["pooled"],2,null,1.0,null,null,"given"]', NULL, NULL, '{"value":4}', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO fairlead.job OVERRIDING SYSTEM VALUE VALUES (14, 1794882285935587, 1794882285935587, 1794882285935587, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 1, NULL, 2, NULL, '01a1e752-316f-76a6-85d2-3e9b0df35841', 'user-0', 'second', NULL, NULL, NULL, NULL, '[["second"],2,null,1.0,null,null,"default"]', NULL, NULL, '{"value":4}', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO fairlead.job OVERRIDING SYSTEM VALUE VALUES (15, 1794882285942940, 1794882285942940, 1794882285942940, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 1, NULL, 1, NULL, '01a1e752-3176-762f-994a-30b1a2732566', 'user-2', 'pooled', NULL, NULL, NULL, NULL, '[["pooled"],1,null,1.0,null,null,"given"]', NULL, NULL, '{"value":5}', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO fairlead.job OVERRIDING SYSTEM VALUE VALUES (16, 1794882285945116, 1794882285945116, 1794882285945116, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 1, NULL, 2, NULL, '01a1e752-3179-71f1-8f45-e3efe4b8d3ab', 'user-1', 'second', NULL, NULL, NULL, NULL, '[["second"],2,null,1.0,null,null,"default"]', NULL, NULL, '{"value":5}', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO fairlead.job OVERRIDING SYSTEM VALUE VALUES (17, 1794882285955522, NULL, NULL, 1794882286955522, NULL, NULL, NULL, NULL, 1794882286955522, NULL, NULL, NULL, 0, 0, 0, 0, 0, NULL, 2, NULL, '01a1e752-3183-70fb-9cdd-b11fefce1645', 'eve', 'echo', NULL, NULL, NULL, NULL, '[["echo"],2,null,1.0,null,null,"default"]', NULL, NULL, '{"value":9}', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO fairlead.job OVERRIDING SYSTEM VALUE VALUES (18, 1794882285957013, 1794882285957013, 1794882285957013, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 1, NULL, 2, NULL, '01a1e752-3185-720b-97c7-3d44efcf11d7', 'eve', 'second', NULL, NULL, NULL, NULL, '[["second"],2,null,1.0,null,null,"default"]', NULL, NULL, '{"value":0}', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO fairlead.job OVERRIDING SYSTEM VALUE VALUES (19, 1794882285957013, 1794882285957013, 1794882285957013, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 1, NULL, 2, NULL, '01a1e752-3185-720b-97c7-3d4589c09434', 'eve', 'second', NULL, NULL, NULL, NULL, '[["second"],2,null,1.0,null,null,"default"]', NULL, NULL, '{"value":1}', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO fairlead.job OVERRIDING SYSTEM VALUE VALUES (20, 1794882285957013, 1794882285957013, 1794882285957013, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 1, NULL, 2, NULL, '01a1e752-3185-720b-97c7-3d46940addbc', 'eve', 'second', NULL, NULL, NULL, NULL, '[["second"],2,null,1.0,null,null,"default"]', NULL, NULL, '{"value":2}', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO fairlead.job OVERRIDING SYSTEM VALUE VALUES (21, 1794882286020485, 1794882286020485, NULL, NULL, NULL, 1794882286040994, NULL, NULL, 1794882287052499, NULL, NULL, NULL, 2, 0, 1, 0, 2, NULL, 2, NULL, '01a1e752-31c4-70be-a435-31ec7a7df406', 'ada', 'slow_retry', NULL, NULL, '{"code":"EXCEPTION","message":"ConnectionError: not today"}', NULL, '[["slow_retry"],2,null,1.0,null,null,"default"]', NULL, NULL, '{"value":7}', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO fairlead.job OVERRIDING SYSTEM VALUE VALUES (22, 1794882286108446, 1794882286108446, 1794882286108446, NULL, NULL, 1794882286138766, NULL, NULL, NULL, NULL, 1794882286138766, 1794882291138766, 1, 0, 1, 0, 3, NULL, 2, NULL, '01a1e752-321c-70f7-9bac-027f88fb0746', 'ada', 'crash', '1:10648250321', 'vm:26166:87bb4975', NULL, NULL, '[["crash"],2,null,1.0,null,null,"default"]', NULL, NULL, '{"value":8}', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO fairlead.job_batch VALUES ('01a1e752-3185-720b-97c7-3d47d75ff46f', 'eve', NULL, NULL, 1794882285957013, 3, NULL, NULL, NULL, NULL);
INSERT INTO fairlead.outbox VALUES (1, 1794882284523382, '01a1e752-2bda-722a-9598-de60264889b5', 'relaying', 'echo', 2, NULL);
INSERT INTO fairlead.outbox VALUES (21, 1794882286117406, '01a1e752-321c-70f7-9bac-027f88fb0746', 'relaying', 'crash', 2, NULL);
INSERT INTO fairlead.process VALUES ('vm:26166:87bb4975', 1794882284636587, false, '{"concurrency":1000,"host":"vm","pid":26166,"version":"0.1.0","started_at":1794882284.0378275,"clock":1794882284.521841,"draining":false,"running":0,"roles":["api","worker","manager"],"services":["crash","echo","flaky","pooled","second","slow_retry"],"bands":["high","medium","low"],"details":{"machine":"746f3561-d7ca-4966-8c16-493bd5f3ffba/4026531836","began":263222,"event_loop_blocked":0,"late_results":0}}');
INSERT INTO fairlead.rules VALUES (3, '{"pools":{"gpu":2},"services":[{"cost":null,"lease_ttl":3.0,"limit":1,"order":"fair","paused":false,"pool":null,"regions":{},"retries_first":false,"service":"crash","user_limit":null},{"cost":null,"lease_ttl":15.0,"limit":2,"order":"fair","paused":false,"pool":null,"regions":{},"retries_first":false,"service":"echo","user_limit":null},{"cost":null,"lease_ttl":15.0,"limit":1,"order":"fair","paused":false,"pool":null,"regions":{},"retries_first":false,"service":"flaky","user_limit":null},{"cost":null,"lease_ttl":15.0,"limit":2,"order":"fair","paused":false,"pool":"gpu","regions":{},"retries_first":false,"service":"pooled","user_limit":null},{"cost":null,"lease_ttl":15.0,"limit":1,"order":"fifo","paused":false,"pool":null,"regions":{},"retries_first":false,"service":"second","user_limit":null},{"cost":null,"lease_ttl":15.0,"limit":1,"order":"fair","paused":false,"pool":null,"regions":{},"retries_first":false,"service":"slow_retry","user_limit":null}]}');
INSERT INTO fairlead.schema_version VALUES (11);
INSERT INTO fairlead.service_override VALUES ('second', NULL, true);
INSERT INTO fairlead.service_override VALUES ('pooled', NULL, true);
INSERT INTO fairlead.step_result VALUES (1, 0, 0, 'echo', '{"service":"echo","value":1}', '{"execution_time_ms":0.029}', 1794882285321272, '1:12291498211');
INSERT INTO fairlead.step_result VALUES (4, 0, 0, 'echo', '{"service":"echo","value":2}', '{"execution_time_ms":0.034}', 1794882285811004, '1:22291498211');
SELECT pg_catalog.setval('fairlead.job_seq_seq', 22, true);
SELECT pg_catalog.setval('fairlead.outbox_id', 21, true);
ALTER TABLE ONLY fairlead.activity
    ADD CONSTRAINT activity_pkey PRIMARY KEY (minute, process, service);
ALTER TABLE ONLY fairlead.adaptive_limit
    ADD CONSTRAINT adaptive_limit_pkey PRIMARY KEY (service);
ALTER TABLE ONLY fairlead.api_key
    ADD CONSTRAINT api_key_pkey PRIMARY KEY (id);
ALTER TABLE ONLY fairlead.attempt
    ADD CONSTRAINT attempt_pkey PRIMARY KEY (seq, run);
ALTER TABLE ONLY fairlead.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (id);
ALTER TABLE ONLY fairlead.batch_item
    ADD CONSTRAINT batch_item_pkey PRIMARY KEY (batch_id, item);
ALTER TABLE ONLY fairlead.dashboard_session
    ADD CONSTRAINT dashboard_session_pkey PRIMARY KEY (hash);
ALTER TABLE ONLY fairlead.epoch
    ADD CONSTRAINT epoch_pkey PRIMARY KEY (scope);
ALTER TABLE ONLY fairlead.hold
    ADD CONSTRAINT hold_pkey PRIMARY KEY (id);
ALTER TABLE ONLY fairlead.idempotency
    ADD CONSTRAINT idempotency_pkey PRIMARY KEY (user_id, key);
ALTER TABLE ONLY fairlead.job_batch
    ADD CONSTRAINT job_batch_pkey PRIMARY KEY (id);
ALTER TABLE ONLY fairlead.job
    ADD CONSTRAINT job_id_unique PRIMARY KEY (id) WITH (fillfactor='45');
ALTER TABLE ONLY fairlead.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (id);
ALTER TABLE ONLY fairlead.process
    ADD CONSTRAINT process_pkey PRIMARY KEY (name);
ALTER TABLE ONLY fairlead.service_override
    ADD CONSTRAINT service_override_pkey PRIMARY KEY (service);
ALTER TABLE ONLY fairlead.step_result
    ADD CONSTRAINT step_result_pkey PRIMARY KEY (seq, step, round);
ALTER TABLE ONLY fairlead.ticket
    ADD CONSTRAINT ticket_pkey PRIMARY KEY (hash);
CREATE INDEX audit_by_action ON fairlead.audit USING btree (action, id);
CREATE INDEX audit_by_time ON fairlead.audit USING btree (at);
CREATE UNIQUE INDEX batch_item_custom ON fairlead.batch_item USING btree (batch_id, custom_id) WHERE (custom_id IS NOT NULL);
CREATE INDEX batch_item_job ON fairlead.batch_item USING btree (job_id);
CREATE INDEX job_batch_by_user ON fairlead.job_batch USING btree (user_id, id);
CREATE INDEX job_batch_finished ON fairlead.job_batch USING btree (finished_at) WHERE (finished_at IS NOT NULL);
CREATE UNIQUE INDEX job_batch_key ON fairlead.job_batch USING btree (user_id, idempotency_key) WHERE (idempotency_key IS NOT NULL);
CREATE INDEX job_batch_open ON fairlead.job_batch USING btree (id) WHERE (finished_at IS NULL);
CREATE UNIQUE INDEX job_by_seq ON fairlead.job USING btree (seq) WITH (fillfactor='45');
CREATE INDEX job_by_user ON fairlead.job USING btree (user_id, seq) WITH (fillfactor='45');
CREATE INDEX job_dead ON fairlead.job USING btree (ended, seq) WHERE (ended > 4);
CREATE INDEX job_finished ON fairlead.job USING btree (ended, finished_at) WHERE (ended IS NOT NULL);
CREATE INDEX job_open ON fairlead.job USING btree (priority, queued_at) WHERE (ended IS NULL);
CREATE INDEX job_open_by_user ON fairlead.job USING btree (user_id) WHERE (ended IS NULL);
CREATE INDEX job_timer ON fairlead.job USING btree (timer_at) WHERE (timer_at IS NOT NULL);
CREATE INDEX job_turn ON fairlead.job USING btree (turn, seq) WHERE ((turn IS NOT NULL) AND (ended IS NULL));
CREATE INDEX outbox_lane ON fairlead.outbox USING btree (service, band, id);
