-- A row is work that is not done yet. `due` is when somebody may take it: a queued run is due
-- now, a leased one when its lease ends, so that a lost worker needs no clean-up.
CREATE TABLE runs (
    id text PRIMARY KEY,
    account_id text NOT NULL,
    kind text NOT NULL,
    subject text NOT NULL,
    payload jsonb NOT NULL,
    owner text,
    fence bigint NOT NULL DEFAULT 0,
    attempt integer NOT NULL DEFAULT 0,
    stop boolean NOT NULL DEFAULT false,
    due timestamptz NOT NULL DEFAULT now(),
    created_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE UNIQUE INDEX runs_subject ON runs (account_id, kind, subject);
CREATE INDEX runs_due ON runs (due);
