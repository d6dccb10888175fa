CREATE TABLE users (
    id text PRIMARY KEY,
    account_id text NOT NULL REFERENCES accounts ON DELETE CASCADE,
    -- NULL = known by another issuer, and without a password here.
    email text,
    password text,
    issuer text,
    subject text,
    name text NOT NULL,
    role text NOT NULL CHECK (role IN ('admin', 'member')),
    disabled boolean NOT NULL DEFAULT false,
    created_ms bigint NOT NULL,
    edited_ms bigint NOT NULL
);
CREATE UNIQUE INDEX users_email ON users (account_id, lower(email));
CREATE UNIQUE INDEX users_subject ON users (account_id, issuer, subject);
CREATE INDEX users_newest ON users (account_id, created_ms DESC, id DESC);

CREATE TABLE oauth_clients (
    id text PRIMARY KEY,
    account_id text NOT NULL REFERENCES accounts ON DELETE CASCADE,
    client_id text NOT NULL UNIQUE,
    name text NOT NULL,
    redirect_uris text[] NOT NULL,
    -- SHA-256 of the secret; NULL = a public client.
    secret_digest text,
    scopes text[] NOT NULL,
    created_ms bigint NOT NULL,
    edited_ms bigint NOT NULL
);
CREATE INDEX oauth_clients_newest ON oauth_clients (account_id, created_ms DESC, id DESC);

-- What a user granted a client: the family of all tokens that follow from one code.
CREATE TABLE oauth_grants (
    id text PRIMARY KEY,
    account_id text NOT NULL REFERENCES accounts ON DELETE CASCADE,
    client_id text NOT NULL REFERENCES oauth_clients (client_id) ON DELETE CASCADE,
    user_id text NOT NULL REFERENCES users ON DELETE CASCADE,
    scope text NOT NULL,
    audience text NOT NULL,
    -- The code it began with; used once.
    code_digest text NOT NULL UNIQUE,
    code_expires_ms bigint NOT NULL,
    code_used_ms bigint,
    redirect_uri text NOT NULL,
    challenge text NOT NULL,
    created_ms bigint NOT NULL,
    revoked_ms bigint
);
CREATE INDEX oauth_grants_age ON oauth_grants (created_ms);

CREATE TABLE oauth_refresh_tokens (
    digest text PRIMARY KEY,
    grant_id text NOT NULL REFERENCES oauth_grants ON DELETE CASCADE,
    expires_ms bigint NOT NULL,
    used_ms bigint,
    -- What it was answered, for a repetition of the same request.
    sealed_answer text
);
CREATE INDEX oauth_refresh_tokens_of_grant ON oauth_refresh_tokens (grant_id);
CREATE INDEX oauth_refresh_tokens_end ON oauth_refresh_tokens (expires_ms);
