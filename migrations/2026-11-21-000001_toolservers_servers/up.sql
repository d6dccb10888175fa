CREATE TABLE tool_servers (
    account_id text NOT NULL,
    id text NOT NULL,
    identifier text NOT NULL,
    kind text NOT NULL CHECK (kind IN ('http', 'mcp', 'integration')),
    name text NOT NULL,
    description text NOT NULL,
    project_id text,
    enabled boolean NOT NULL,
    -- What a client sets, as it is sent: secrets are masked. The columns beside it are for looking up.
    settings jsonb NOT NULL,
    -- Its tools: what a client sets, or what an MCP server offered when it was last asked.
    tools jsonb NOT NULL,
    tool_count integer NOT NULL,
    -- All secrets, sealed together.
    secrets text,
    health text CHECK (health IN ('ok', 'degraded', 'down')),
    last_error text,
    refreshed_ms bigint,
    version bigint NOT NULL DEFAULT 1,
    created_ms bigint NOT NULL,
    edited_ms bigint NOT NULL,
    PRIMARY KEY (account_id, id),
    UNIQUE (account_id, identifier)
);
CREATE INDEX tool_servers_newest ON tool_servers (account_id, created_ms DESC, id DESC);

-- Who refers to a server: kept by whoever owns the referring record, in the transaction that changes it.
CREATE TABLE tool_server_uses (
    account_id text NOT NULL,
    server_id text NOT NULL,
    user_kind text NOT NULL,
    user_id text NOT NULL,
    PRIMARY KEY (account_id, server_id, user_kind, user_id),
    FOREIGN KEY (account_id, server_id) REFERENCES tool_servers ON DELETE CASCADE
);
CREATE INDEX tool_server_uses_of ON tool_server_uses (account_id, user_kind, user_id);

-- OAuth tokens that were fetched for a server, shared by all processes.
CREATE TABLE tool_tokens (
    account_id text NOT NULL,
    server_id text NOT NULL,
    -- Access token, its end, and the refresh token that came with it, sealed.
    sealed text,
    -- Somebody is fetching a token.
    claimed_until timestamptz,
    PRIMARY KEY (account_id, server_id)
);
