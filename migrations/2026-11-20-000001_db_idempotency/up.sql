-- One row per Idempotency-Key, written in the transaction of the effect it guards.
CREATE TABLE idempotency (
    scope text PRIMARY KEY,
    body_hash text NOT NULL,
    status smallint NOT NULL,
    body text,
    run_of text,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX idempotency_age ON idempotency (created_at);
