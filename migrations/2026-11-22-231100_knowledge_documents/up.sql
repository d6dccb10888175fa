CREATE TABLE folders (
    account_id text NOT NULL,
    id text NOT NULL,
    name text NOT NULL,
    project_id text,
    parent_id text,
    color text,
    tags jsonb NOT NULL,
    is_skill boolean NOT NULL,
    created_ms bigint NOT NULL,
    edited_ms bigint NOT NULL,
    PRIMARY KEY (account_id, id),
    FOREIGN KEY (account_id, parent_id) REFERENCES folders (account_id, id)
);
CREATE INDEX folders_within ON folders (account_id, parent_id);
CREATE INDEX folders_newest ON folders (account_id, created_ms DESC, id DESC);

CREATE TABLE documents (
    account_id text NOT NULL,
    id text NOT NULL,
    name text NOT NULL,
    file_name text NOT NULL,
    file_type text NOT NULL CHECK (file_type IN ('md', 'pdf', 'txt', 'docx', 'html')),
    status text NOT NULL CHECK (status IN ('pending', 'ready', 'failed')),
    size bigint NOT NULL,
    token_count bigint NOT NULL,
    summary text NOT NULL,
    is_skill boolean NOT NULL,
    tags jsonb NOT NULL,
    project_id text,
    folder_id text,
    parent_id text,
    -- The newest of its versions, whose text is the one that is read.
    current_version integer NOT NULL,
    content_hash text NOT NULL,
    -- How far the search index is, as it is shown.
    indexing jsonb NOT NULL,
    -- When it is indexed next, in milliseconds since 1970; NULL = there is nothing to do.
    due_ms bigint,
    -- Name of the text search configuration of its language.
    language text NOT NULL,
    created_by text NOT NULL,
    source_file_id text,
    version bigint NOT NULL,
    created_ms bigint NOT NULL,
    edited_ms bigint NOT NULL,
    PRIMARY KEY (account_id, id),
    FOREIGN KEY (account_id, folder_id) REFERENCES folders (account_id, id),
    FOREIGN KEY (account_id, parent_id) REFERENCES documents (account_id, id)
);
CREATE INDEX documents_newest ON documents (account_id, created_ms DESC, id DESC);
CREATE INDEX documents_in_folder ON documents (account_id, folder_id);
CREATE INDEX documents_below ON documents (account_id, parent_id);
CREATE INDEX documents_due ON documents (account_id, due_ms, id) WHERE due_ms IS NOT NULL;
CREATE INDEX documents_language ON documents (account_id, language);

-- Texts of documents, each once however many versions have it.
CREATE TABLE document_texts (
    account_id text NOT NULL,
    document_id text NOT NULL,
    content_hash text NOT NULL,
    markdown text NOT NULL,
    PRIMARY KEY (account_id, document_id, content_hash),
    FOREIGN KEY (account_id, document_id) REFERENCES documents (account_id, id) ON DELETE CASCADE
);

CREATE TABLE document_versions (
    account_id text NOT NULL,
    document_id text NOT NULL,
    version integer NOT NULL,
    content_hash text NOT NULL,
    change_type text NOT NULL CHECK (change_type IN ('created', 'updated', 'reverted', 'renamed')),
    change_description text NOT NULL,
    user_uid text NOT NULL,
    size bigint NOT NULL,
    created_ms bigint NOT NULL,
    PRIMARY KEY (account_id, document_id, version),
    FOREIGN KEY (account_id, document_id) REFERENCES documents (account_id, id) ON DELETE CASCADE
);

-- What is searched: pieces of the text that was indexed last.
CREATE TABLE chunks (
    account_id text NOT NULL,
    document_id text NOT NULL,
    position integer NOT NULL,
    id text NOT NULL,
    -- The version of the document that it is of.
    document_version integer NOT NULL,
    heading_path jsonb NOT NULL,
    text text NOT NULL,
    token_count integer NOT NULL,
    -- Words of headings (A) and text (D), and one that names the account, so that no search leaves it.
    words tsvector NOT NULL,
    PRIMARY KEY (account_id, document_id, position),
    FOREIGN KEY (account_id, document_id) REFERENCES documents (account_id, id) ON DELETE CASCADE
);
CREATE INDEX chunks_words ON chunks USING gin (words);

-- Names are found by any part of them; without the extension they are compared one by one.
DO $$
BEGIN
    CREATE EXTENSION IF NOT EXISTS pg_trgm;
    CREATE INDEX documents_names ON documents USING gin (name gin_trgm_ops);
EXCEPTION WHEN OTHERS THEN
    RAISE NOTICE 'pg_trgm is not available: %', SQLERRM;
END
$$;
