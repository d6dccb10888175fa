-- MCP servers that end users bring.
CREATE TABLE tenant_mcp_servers (
    account_id text NOT NULL,
    id text NOT NULL,
    tenant_id text NOT NULL,
    -- Empty: of the tenant itself.
    subtenant_id text NOT NULL,
    -- What stands before the names of its tools.
    identifier text NOT NULL,
    name text NOT NULL,
    url text NOT NULL,
    auth_mode text NOT NULL CHECK (auth_mode IN ('oauth', 'header', 'none')),
    -- Sealed: headers that let in.
    headers text,
    status text NOT NULL CHECK (status IN ('pending_auth', 'active', 'error')),
    status_reason text,
    tools jsonb NOT NULL,
    refreshed_ms bigint,
    created_ms bigint NOT NULL,
    updated_ms bigint NOT NULL,
    PRIMARY KEY (account_id, id)
);
CREATE UNIQUE INDEX tenant_mcp_servers_owner
    ON tenant_mcp_servers (account_id, tenant_id, subtenant_id, identifier);
