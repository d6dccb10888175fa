-- Files that were uploaded or made; their bytes are in the object store under `files/<account>/<id>`.
CREATE TABLE files (
    account_id text NOT NULL,
    id text NOT NULL,
    name text NOT NULL,
    file_type text NOT NULL CHECK (file_type IN ('image', 'document', 'audio', 'video', 'other')),
    mime_type text NOT NULL,
    sha256 text NOT NULL,
    size bigint NOT NULL,
    -- 256 random bits: whoever knows them may download.
    token text NOT NULL UNIQUE,
    -- What it is kept for as long as that is there, such as a document that was made of it.
    kept_for text,
    tenant_id text,
    subtenant_id text,
    expires_ms bigint,
    created_ms bigint NOT NULL,
    PRIMARY KEY (account_id, id)
);
CREATE INDEX files_newest ON files (account_id, created_ms DESC, id DESC);
CREATE INDEX files_expiry ON files (expires_ms) WHERE expires_ms IS NOT NULL;
