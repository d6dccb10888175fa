CREATE TABLE assistants (
    id text PRIMARY KEY,
    account_id text NOT NULL,
    identifier text NOT NULL,
    -- Everything a client sets, as it is sent; the columns beside it are for looking up.
    settings jsonb NOT NULL,
    version bigint NOT NULL DEFAULT 1,
    -- A deleted assistant keeps its identifier and its chats.
    deleted boolean NOT NULL DEFAULT false,
    created_ms bigint NOT NULL,
    edited_ms bigint NOT NULL,
    UNIQUE (account_id, identifier)
);
