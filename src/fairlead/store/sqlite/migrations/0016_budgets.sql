-- Budgets (docs/adr/0040). All tables are new: a process of the previous release keeps running, and counts nothing.

-- One row for each budget and subject: the user, if the budget is for each user, else ''. Amounts are in the smallest
-- part of the budget's measure, `window_start` in µs. `reserved` is the sum of the reservations.
CREATE TABLE budget_counter (
    budget TEXT NOT NULL,
    subject TEXT NOT NULL,
    window_start INTEGER NOT NULL,
    used INTEGER NOT NULL DEFAULT 0,
    reserved INTEGER NOT NULL DEFAULT 0,
    calls INTEGER NOT NULL DEFAULT 0,
    mean INTEGER NOT NULL DEFAULT 0,
    warned INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (budget, subject)
) WITHOUT ROWID;

-- What calls under way are expected to use. `run` is that of the running job.
CREATE TABLE budget_reservation (
    job_id TEXT NOT NULL,
    budget TEXT NOT NULL,
    subject TEXT NOT NULL,
    run INTEGER NOT NULL,
    amount INTEGER NOT NULL,
    PRIMARY KEY (job_id, budget)
) WITHOUT ROWID;

-- The jobs that budgets hold. `run` is that of the job while it is held.
CREATE TABLE budget_hold (
    job_id TEXT PRIMARY KEY,
    run INTEGER NOT NULL,
    budget TEXT NOT NULL,
    subject TEXT NOT NULL,
    seq INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX budget_hold_of ON budget_hold (budget, subject, seq);

-- Amounts that operators have set, for one subject or for all ('').
CREATE TABLE budget_override (
    budget TEXT NOT NULL,
    subject TEXT NOT NULL,
    amount INTEGER NOT NULL,
    PRIMARY KEY (budget, subject)
) WITHOUT ROWID;
