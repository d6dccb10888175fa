CREATE TABLE webhooks (
    account_id text NOT NULL,
    id text NOT NULL,
    url text NOT NULL,
    events text[] NOT NULL,
    enabled boolean NOT NULL,
    description text NOT NULL,
    project_id text,
    tenant_id text,
    include_content boolean NOT NULL,
    disabled_reason text,
    -- Sealed; the one before counts for a day after a rotation.
    secret text NOT NULL,
    previous_secret text,
    rotated_ms bigint,
    -- Since when nothing but failures.
    failing_since_ms bigint,
    created_ms bigint NOT NULL,
    edited_ms bigint NOT NULL,
    PRIMARY KEY (account_id, id)
);

-- With which the events of one thread or agent are signed.
CREATE TABLE webhook_secrets (
    account_id text PRIMARY KEY,
    secret text NOT NULL,
    previous_secret text,
    rotated_ms bigint
);

CREATE TABLE webhook_deliveries (
    account_id text NOT NULL,
    id text PRIMARY KEY,
    -- NULL = to an address that a thread or an agent names.
    webhook_id text,
    url text,
    -- Whom it shares its turn with: a webhook, or an address.
    lane text NOT NULL,
    event_id text NOT NULL,
    event_type text NOT NULL,
    body text NOT NULL,
    depth smallint NOT NULL,
    status text NOT NULL CHECK (status IN ('pending', 'succeeded', 'failed')),
    -- [{timestampMs, statusCode, durationMs, error}]
    attempts jsonb NOT NULL DEFAULT '[]',
    -- How many of them count.
    tries smallint NOT NULL DEFAULT 0,
    -- When it is to be tried; while it is tried, when another may.
    next_ms bigint,
    -- It is sent while its webhook is disabled, too.
    forced boolean NOT NULL DEFAULT false,
    created_ms bigint NOT NULL,
    FOREIGN KEY (account_id, webhook_id) REFERENCES webhooks (account_id, id) ON DELETE CASCADE
);
-- One delivery of an event to whoever listens, however often it is taken.
CREATE UNIQUE INDEX webhook_deliveries_once ON webhook_deliveries (event_id, lane, md5(coalesce(url, '')));
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (lane, next_ms) WHERE next_ms IS NOT NULL;
CREATE INDEX webhook_deliveries_log ON webhook_deliveries (account_id, webhook_id, created_ms DESC, id DESC);
CREATE INDEX webhook_deliveries_age ON webhook_deliveries (created_ms);
