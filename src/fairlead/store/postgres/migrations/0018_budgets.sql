-- Budgets (docs/adr/0040). All tables are new: processes of the previous release keep running, and count nothing.

-- One row for each budget and subject: the user, if the budget is for each user, else ''. Amounts are in the smallest
-- part of the budget's measure, `window_start` in µs. `reserved` is the sum of the reservations. Rows change often and
-- their key never does, so the free space keeps updates within their page.
CREATE TABLE fairlead.budget_counter (
    budget text COLLATE "C" NOT NULL,
    subject text COLLATE "C" NOT NULL,
    window_start bigint NOT NULL,
    used bigint NOT NULL DEFAULT 0,
    reserved bigint NOT NULL DEFAULT 0,
    calls bigint NOT NULL DEFAULT 0,
    mean bigint NOT NULL DEFAULT 0,
    warned smallint NOT NULL DEFAULT 0,
    PRIMARY KEY (budget, subject)
) WITH (fillfactor = 50);

-- What calls under way are expected to use. `run` is that of the running job.
CREATE TABLE fairlead.budget_reservation (
    job_id text COLLATE "C" NOT NULL,
    budget text COLLATE "C" NOT NULL,
    subject text COLLATE "C" NOT NULL,
    run int NOT NULL,
    amount bigint NOT NULL,
    PRIMARY KEY (job_id, budget)
);

-- The jobs that budgets hold. `run` is that of the job while it is held.
CREATE TABLE fairlead.budget_hold (
    job_id text COLLATE "C" PRIMARY KEY,
    run int NOT NULL,
    budget text COLLATE "C" NOT NULL,
    subject text COLLATE "C" NOT NULL,
    seq bigint NOT NULL
);
CREATE INDEX budget_hold_of ON fairlead.budget_hold (budget, subject, seq);

-- Amounts that operators have set, for one subject or for all ('').
CREATE TABLE fairlead.budget_override (
    budget text COLLATE "C" NOT NULL,
    subject text COLLATE "C" NOT NULL,
    amount bigint NOT NULL,
    PRIMARY KEY (budget, subject)
);
