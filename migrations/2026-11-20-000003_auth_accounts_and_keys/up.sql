CREATE TABLE accounts (
    id text PRIMARY KEY,
    name text NOT NULL UNIQUE,
    created_ms bigint NOT NULL,
    edited_ms bigint NOT NULL
);

CREATE TABLE api_keys (
    id text PRIMARY KEY,
    account_id text NOT NULL REFERENCES accounts ON DELETE CASCADE,
    name text NOT NULL,
    -- SHA-256 of the value, hex; the value itself is shown once and stored nowhere.
    digest text NOT NULL UNIQUE,
    -- The value before the last rotation, and until when it still works.
    old_digest text UNIQUE,
    old_digest_until_ms bigint,
    prefix text NOT NULL,
    last4 text NOT NULL,
    disabled boolean NOT NULL DEFAULT false,
    expires_at_ms bigint,
    last_used_ms bigint,
    created_by text NOT NULL,
    created_ms bigint NOT NULL,
    edited_ms bigint NOT NULL
);
CREATE INDEX api_keys_of_account ON api_keys (account_id, created_ms DESC, id DESC);
