CREATE TABLE connections (
    account_id text NOT NULL,
    id text NOT NULL,
    app text NOT NULL,
    scheme text NOT NULL,
    label text NOT NULL,
    status text NOT NULL CHECK (status IN ('pending', 'active', 'needs_reauth', 'expired')),
    status_reason text,
    -- Of an end user, else of the account.
    tenant_id text,
    subtenant_id text,
    -- Sealed: fields and tokens.
    secrets text NOT NULL,
    -- When the access token is no good any more, and when another is to be asked for.
    expires_ms bigint,
    refresh_ms bigint,
    -- Whoever asks for another one has the right until then.
    claimed_until timestamptz,
    -- 401 one after the other.
    refused smallint NOT NULL DEFAULT 0,
    connected_ms bigint,
    created_ms bigint NOT NULL,
    updated_ms bigint NOT NULL,
    PRIMARY KEY (account_id, id)
);
CREATE INDEX connections_app ON connections (account_id, app, created_ms DESC);
CREATE INDEX connections_tenant ON connections (account_id, tenant_id, app) WHERE tenant_id IS NOT NULL;
CREATE INDEX connections_refresh ON connections (refresh_ms) WHERE status = 'active' AND refresh_ms IS NOT NULL;
CREATE INDEX connections_pending ON connections (updated_ms) WHERE status = 'pending';

-- What the operator of an app gave, for all accounts that connect.
CREATE TABLE app_credentials (
    account_id text NOT NULL,
    app text NOT NULL,
    scheme text NOT NULL,
    sealed text NOT NULL,
    PRIMARY KEY (account_id, app, scheme)
);

-- Users who are deciding in their browsers; the state is known by its hash alone.
CREATE TABLE connection_attempts (
    state_hash text PRIMARY KEY,
    account_id text NOT NULL,
    connection_id text NOT NULL,
    -- Sealed: the PKCE verifier, and fields that replace those of the connection.
    sealed text NOT NULL,
    return_to text,
    made_by text NOT NULL,
    expires_ms bigint NOT NULL
);
CREATE INDEX connection_attempts_end ON connection_attempts (expires_ms);
