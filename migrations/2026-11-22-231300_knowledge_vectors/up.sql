-- Under which its vectors are found: what a piece says with the headings above it.
ALTER TABLE chunks ADD COLUMN text_hash text NOT NULL DEFAULT '';

-- Vectors of pieces, each once however many pieces say the same; they outlive an index that is made anew.
CREATE TABLE chunk_vectors (
    account_id text NOT NULL,
    document_id text NOT NULL,
    -- `provider:model` that made it.
    model text NOT NULL,
    text_hash text NOT NULL,
    -- Of length 1.
    embedding real[] NOT NULL,
    PRIMARY KEY (account_id, document_id, model, text_hash),
    FOREIGN KEY (account_id, document_id) REFERENCES documents (account_id, id) ON DELETE CASCADE
);
-- Nothing is gained by packing noise.
ALTER TABLE chunk_vectors ALTER COLUMN embedding SET STORAGE EXTERNAL;

ALTER TABLE documents
    -- The model whose vectors all of its pieces have.
    ADD COLUMN embedded_by text,
    -- Changes whenever its pieces or their vectors do.
    ADD COLUMN index_id text NOT NULL DEFAULT '',
    ADD COLUMN piece_count integer NOT NULL DEFAULT 0,
    -- The text that its summary was made of; `client` = a client wrote it.
    ADD COLUMN summary_of text;
UPDATE documents SET summary_of = 'client' WHERE summary <> '';
UPDATE documents d SET piece_count = c.pieces, index_id = md5(d.account_id || d.id || clock_timestamp()::text)
FROM (SELECT account_id, document_id, count(*) AS pieces FROM chunks GROUP BY 1, 2) c
WHERE c.account_id = d.account_id AND c.document_id = d.id;
-- Which of them have no summary of their text yet.
CREATE INDEX documents_unsummarised ON documents (account_id, id)
    WHERE summary_of IS DISTINCT FROM content_hash AND summary_of IS DISTINCT FROM 'client' AND status = 'ready' AND size > 0;
