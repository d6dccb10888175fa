-- What happened, written in the transaction of its cause.
CREATE TABLE events (
    id text PRIMARY KEY,
    account_id text NOT NULL,
    kind text NOT NULL,
    data jsonb NOT NULL,
    agent_id text,
    thread_id text,
    tenant_id text,
    created_ms bigint NOT NULL
);
CREATE INDEX events_age ON events (created_ms);
