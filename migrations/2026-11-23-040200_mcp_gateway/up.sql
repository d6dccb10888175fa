-- What an MCP client is shown of the tool servers of an account.
CREATE TABLE mcp_profiles (
    account_id text NOT NULL,
    id text NOT NULL,
    slug text NOT NULL,
    settings jsonb NOT NULL,
    -- Server → tool → digest of the tool as an operator last let it in.
    seen jsonb NOT NULL,
    created_ms bigint NOT NULL,
    edited_ms bigint NOT NULL,
    PRIMARY KEY (account_id, id)
);
CREATE UNIQUE INDEX mcp_profiles_slug ON mcp_profiles (account_id, slug);

CREATE TABLE mcp_grants (
    account_id text NOT NULL,
    id text NOT NULL,
    profile_id text NOT NULL,
    subject_type text NOT NULL CHECK (subject_type IN ('user', 'key', 'tenant', 'subtenant', 'claim')),
    subject text NOT NULL,
    tool_policy text NOT NULL CHECK (tool_policy IN ('all', 'allow', 'deny')),
    tools text[] NOT NULL,
    created_ms bigint NOT NULL,
    PRIMARY KEY (account_id, id),
    FOREIGN KEY (account_id, profile_id) REFERENCES mcp_profiles ON DELETE CASCADE
);
CREATE INDEX mcp_grants_profile ON mcp_grants (account_id, profile_id);

-- Tools that a caller does without.
CREATE TABLE mcp_switches (
    account_id text NOT NULL,
    profile_id text NOT NULL,
    subject text NOT NULL,
    disabled text[] NOT NULL,
    PRIMARY KEY (account_id, profile_id, subject),
    FOREIGN KEY (account_id, profile_id) REFERENCES mcp_profiles ON DELETE CASCADE
);

CREATE TABLE mcp_audit (
    account_id text NOT NULL,
    id text NOT NULL,
    timestamp_ms bigint NOT NULL,
    subject text NOT NULL,
    profile_id text NOT NULL,
    tool_server_id text,
    tool_name text NOT NULL,
    outcome text NOT NULL CHECK (outcome IN ('ok', 'tool_error', 'denied', 'upstream_error', 'timeout')),
    duration_ms bigint NOT NULL,
    request_bytes bigint NOT NULL,
    response_bytes bigint NOT NULL,
    error_code text,
    arguments text,
    result text,
    PRIMARY KEY (account_id, id)
);
CREATE INDEX mcp_audit_newest ON mcp_audit (account_id, timestamp_ms DESC, id DESC);
CREATE INDEX mcp_audit_age ON mcp_audit (timestamp_ms);
