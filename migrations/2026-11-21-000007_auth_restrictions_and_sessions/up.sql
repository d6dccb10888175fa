ALTER TABLE api_keys
    ADD COLUMN identity_mode text NOT NULL DEFAULT 'open' CHECK (identity_mode IN ('open', 'signed')),
    ADD COLUMN allowed_domains text[] NOT NULL DEFAULT '{}',
    -- [{method, path}]
    ADD COLUMN allowed_endpoints jsonb NOT NULL DEFAULT '[]',
    ADD COLUMN preset text CHECK (preset IN ('ui')),
    -- NULL = all projects
    ADD COLUMN project_ids text[];

CREATE TABLE tenant_sessions (
    id text PRIMARY KEY,
    account_id text NOT NULL REFERENCES accounts ON DELETE CASCADE,
    tenant_id text NOT NULL,
    subtenant_id text,
    -- No foreign key: sessions of a deleted key are revoked, and stay known for a while.
    api_key_id text NOT NULL,
    assistant_ids text[],
    created_ms bigint NOT NULL,
    expires_ms bigint NOT NULL,
    revoked_ms bigint
);
CREATE INDEX tenant_sessions_of_account ON tenant_sessions (account_id, created_ms DESC, id DESC);
CREATE INDEX tenant_sessions_of_tenant ON tenant_sessions (account_id, tenant_id, created_ms DESC, id DESC);
CREATE INDEX tenant_sessions_end ON tenant_sessions (expires_ms);

-- What the server signs with, sealed with the master key.
CREATE TABLE signing_keys (
    id text PRIMARY KEY,
    purpose text NOT NULL CHECK (purpose IN ('session', 'access')),
    sealed text NOT NULL,
    created_ms bigint NOT NULL
);
