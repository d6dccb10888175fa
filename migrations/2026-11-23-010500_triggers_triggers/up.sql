CREATE TABLE triggers (
    account_id text NOT NULL,
    id text NOT NULL,
    name text NOT NULL,
    app text NOT NULL,
    slug text NOT NULL,
    tool_server_id text NOT NULL,
    connection_id text NOT NULL,
    target_type text NOT NULL CHECK (target_type IN ('agent', 'assistant')),
    target_id text NOT NULL,
    state text NOT NULL CHECK (state IN ('active', 'disabled', 'auto_paused')),
    new_threads_state text NOT NULL CHECK (new_threads_state IN ('queued', 'paused')),
    rate_limit integer NOT NULL,
    message_template text NOT NULL,
    chat_uid_template text NOT NULL,
    config jsonb NOT NULL,
    filter jsonb,
    tenant_id text,
    subtenant_id text,
    project_id text,
    event_count bigint NOT NULL DEFAULT 0,
    last_event_ms bigint,
    auto_paused_ms bigint,
    auto_pause_reason text CHECK (auto_pause_reason IN ('RATE_LIMIT', 'ERRORS', 'CONNECTION')),
    -- The address at which events come in is known by its hash; sealed with the secret of the subscription.
    token_hash text,
    secrets text NOT NULL,
    subscription_id text,
    -- Where the last poll ended: {cursor, seen}.
    cursor jsonb,
    created_ms bigint NOT NULL,
    edited_ms bigint NOT NULL,
    PRIMARY KEY (account_id, id)
);
CREATE UNIQUE INDEX triggers_token ON triggers (token_hash) WHERE token_hash IS NOT NULL;
CREATE UNIQUE INDEX triggers_id ON triggers (id);
CREATE INDEX triggers_list ON triggers (account_id, created_ms DESC, id DESC);
CREATE INDEX triggers_connection ON triggers (account_id, connection_id);
CREATE INDEX triggers_target ON triggers (account_id, target_type, target_id);

-- What is counted of a trigger, apart from it: each event changes it.
CREATE TABLE trigger_counters (
    trigger_id text PRIMARY KEY,
    -- Starts of the minute.
    minute bigint NOT NULL DEFAULT 0,
    starts integer NOT NULL DEFAULT 0,
    -- The last minute in which there were too many, and how many such minutes came one after the other.
    limited_minute bigint NOT NULL DEFAULT 0,
    limited_minutes integer NOT NULL DEFAULT 0,
    errors integer NOT NULL DEFAULT 0
);

CREATE TABLE trigger_events (
    account_id text NOT NULL,
    trigger_id text NOT NULL,
    id text PRIMARY KEY,
    event_id text NOT NULL,
    received_ms bigint NOT NULL,
    outcome text CHECK (outcome IN ('executed', 'duplicate', 'rate_limited', 'disabled', 'filtered', 'error')),
    thread_id text,
    chat_uid text,
    duration_ms bigint,
    error jsonb,
    attempt integer NOT NULL,
    payload jsonb NOT NULL,
    depth smallint NOT NULL,
    -- A test is carried out whatever stands against it.
    is_test boolean NOT NULL,
    -- It was counted in its minute.
    admitted boolean NOT NULL DEFAULT false,
    tries smallint NOT NULL DEFAULT 0
);
CREATE INDEX trigger_events_log ON trigger_events (trigger_id, received_ms DESC, id DESC);
CREATE INDEX trigger_events_event ON trigger_events (trigger_id, event_id, attempt DESC);
CREATE INDEX trigger_events_waiting ON trigger_events (account_id) WHERE outcome IS NULL;
CREATE INDEX trigger_events_age ON trigger_events (received_ms);

-- An event is carried out once within seven days.
CREATE TABLE trigger_seen (
    trigger_id text NOT NULL,
    event_id text NOT NULL,
    delivery_id text NOT NULL,
    seen_ms bigint NOT NULL,
    PRIMARY KEY (trigger_id, event_id)
);
CREATE INDEX trigger_seen_age ON trigger_seen (seen_ms);
