-- When one record began to refer to another.
ALTER TABLE uses ADD COLUMN created_ms bigint NOT NULL
    DEFAULT floor(extract(epoch FROM clock_timestamp()) * 1000);

CREATE TABLE environments (
    account_id text NOT NULL,
    id text NOT NULL PRIMARY KEY,
    project_id text,
    settings jsonb NOT NULL,
    -- The variables, sealed.
    secrets text NOT NULL,
    clis jsonb,
    version bigint NOT NULL DEFAULT 1,
    created_ms bigint NOT NULL,
    edited_ms bigint NOT NULL
);
CREATE INDEX environments_newest ON environments (account_id, created_ms DESC, id DESC);
CREATE INDEX environments_of_project ON environments (account_id, project_id) WHERE project_id IS NOT NULL;
CREATE UNIQUE INDEX environments_public_slug ON environments ((settings #>> '{sandboxConfig,publicSlug}'));

-- Variables of a connection; they go with it.
CREATE TABLE environment_variables (
    account_id text NOT NULL,
    user_kind text NOT NULL,
    user_id text NOT NULL,
    target_kind text NOT NULL CHECK (target_kind = 'environment'),
    target_id text NOT NULL,
    names text[] NOT NULL,
    -- The values, sealed.
    secrets text NOT NULL,
    PRIMARY KEY (account_id, target_kind, target_id, user_kind, user_id),
    FOREIGN KEY (account_id, target_kind, target_id, user_kind, user_id) REFERENCES uses ON DELETE CASCADE
);

CREATE TABLE sandbox_snapshots (
    account_id text NOT NULL,
    id text NOT NULL PRIMARY KEY,
    environment_id text NOT NULL REFERENCES environments ON DELETE CASCADE,
    tenant_id text,
    status text NOT NULL CHECK (status IN ('creating', 'ready', 'restoring', 'failed')),
    -- New machines begin with it.
    is_current boolean NOT NULL DEFAULT false,
    size_bytes bigint NOT NULL DEFAULT 0,
    runtime text NOT NULL,
    memory_mib integer NOT NULL,
    source_sandbox_id text,
    generation integer NOT NULL,
    error text,
    -- SHA-256 of each piece, one after the other.
    pieces bytea NOT NULL DEFAULT '',
    owner text NOT NULL,
    created_ms bigint NOT NULL,
    edited_ms bigint NOT NULL
);
CREATE UNIQUE INDEX sandbox_snapshots_current ON sandbox_snapshots (environment_id, coalesce(tenant_id, '')) WHERE is_current;
CREATE UNIQUE INDEX sandbox_snapshots_creating ON sandbox_snapshots (environment_id, coalesce(tenant_id, '')) WHERE status = 'creating';
CREATE INDEX sandbox_snapshots_of ON sandbox_snapshots (account_id, environment_id, created_ms DESC);

CREATE TABLE sandbox_sessions (
    account_id text NOT NULL,
    id text NOT NULL PRIMARY KEY,
    sandbox_id text NOT NULL UNIQUE,
    environment_id text NOT NULL REFERENCES environments ON DELETE CASCADE,
    tenant_id text,
    -- Whose the only live one is: a tenant, or the environment itself.
    lane text NOT NULL,
    scope text NOT NULL CHECK (scope IN ('environment', 'tenant', 'thread')),
    started_by_type text NOT NULL CHECK (started_by_type IN ('api', 'agent', 'assistant')),
    started_by_id text NOT NULL,
    -- The chat or thread that it was started for.
    conversation_id text,
    status text NOT NULL CHECK (status IN ('pending', 'creating', 'running', 'stopping', 'stopped', 'expired', 'failed')),
    runtime text NOT NULL,
    memory_mib integer NOT NULL,
    backend text NOT NULL,
    isolation text NOT NULL,
    from_snapshot_id text,
    started_ms bigint NOT NULL,
    finished_ms bigint,
    expires_ms bigint NOT NULL,
    auto_extend boolean NOT NULL,
    stopped_reason text CHECK (stopped_reason IN ('api', 'expired', 'disk-limit', 'taken-over', 'error')),
    saving boolean NOT NULL DEFAULT false,
    command_count integer NOT NULL DEFAULT 0,
    init_script jsonb,
    error text,
    -- The process that has the machine, and until when it is believed to.
    owner text NOT NULL,
    owned_until timestamptz NOT NULL
);
CREATE UNIQUE INDEX sandbox_sessions_live ON sandbox_sessions (environment_id, lane)
    WHERE status IN ('pending', 'creating', 'running', 'stopping');
CREATE INDEX sandbox_sessions_of ON sandbox_sessions (account_id, environment_id, started_ms DESC, id DESC);
CREATE INDEX sandbox_sessions_owned ON sandbox_sessions (owner)
    WHERE status IN ('pending', 'creating', 'running', 'stopping');

CREATE TABLE sandbox_commands (
    account_id text NOT NULL,
    session_id text NOT NULL REFERENCES sandbox_sessions ON DELETE CASCADE,
    index integer NOT NULL,
    command text NOT NULL,
    cwd text NOT NULL,
    exit_code integer NOT NULL,
    duration_ms bigint NOT NULL,
    timestamp_ms bigint NOT NULL,
    stdout text NOT NULL,
    stderr text NOT NULL,
    truncated boolean NOT NULL,
    PRIMARY KEY (session_id, index)
);

-- What one process asks of another that has the machine.
CREATE TABLE sandbox_calls (
    account_id text NOT NULL,
    id text NOT NULL PRIMARY KEY,
    owner text NOT NULL,
    -- Sealed, as they hold what users sent and machines said.
    request text NOT NULL,
    answer text,
    taken boolean NOT NULL DEFAULT false,
    created timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX sandbox_calls_waiting ON sandbox_calls (owner) WHERE NOT taken;
