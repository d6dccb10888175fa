-- Whose memory it is: of an assistant for a tenant, and for one of its end users where `subtenant_id` is not empty.
CREATE TABLE memory_buckets (
    account_id text NOT NULL,
    assistant_id text NOT NULL,
    tenant_id text NOT NULL,
    subtenant_id text NOT NULL,
    -- Ids never come back.
    last_id bigint NOT NULL,
    PRIMARY KEY (account_id, tenant_id, subtenant_id, assistant_id)
);
CREATE INDEX memory_buckets_assistant ON memory_buckets (account_id, assistant_id);

CREATE TABLE memory_entries (
    account_id text NOT NULL,
    tenant_id text NOT NULL,
    subtenant_id text NOT NULL,
    assistant_id text NOT NULL,
    id bigint NOT NULL,
    section text NOT NULL,
    content text NOT NULL,
    source text NOT NULL CHECK (source IN ('user', 'assistant', 'api', 'system')),
    pinned boolean NOT NULL,
    read_only boolean NOT NULL,
    supersedes bigint,
    archived_ms bigint,
    created_ms bigint NOT NULL,
    edited_ms bigint NOT NULL,
    PRIMARY KEY (account_id, tenant_id, subtenant_id, assistant_id, id),
    FOREIGN KEY (account_id, tenant_id, subtenant_id, assistant_id)
        REFERENCES memory_buckets (account_id, tenant_id, subtenant_id, assistant_id) ON DELETE CASCADE
);
CREATE INDEX memory_entries_live ON memory_entries (account_id, tenant_id, subtenant_id, assistant_id, id)
    WHERE archived_ms IS NULL;
