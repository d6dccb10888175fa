-- Documents of a hundred pieces that say nothing, and of another account many that are nearer than all else.
CREATE TEMP TABLE ours AS SELECT * FROM documents;
CREATE TEMP TABLE near AS SELECT v.embedding FROM chunk_vectors v JOIN ours USING (account_id);

INSERT INTO documents (account_id, id, name, file_name, file_type, status, size, token_count, summary, is_skill, tags,
    current_version, content_hash, indexing, language, created_by, version, created_ms, edited_ms, embedded_by, index_id,
    piece_count, summary_of)
SELECT CASE WHEN n > 210 THEN 'stranger' ELSE account_id END, 'd' || n, CASE WHEN n > 210 THEN 'Foreign' ELSE 'Filler' END,
    'D.md', 'md', 'ready', 1, 1, '', false, '["many"]', 1, '', '{"state":"done"}', 'simple', 'x', 1, n, n, embedded_by,
    'i' || n, 100, 'client'
FROM ours, generate_series(1, 220) n;

INSERT INTO chunks (account_id, document_id, position, id, document_version, heading_path, text, token_count, words,
    text_hash)
SELECT account_id, id, p, 'c' || id || '-' || p, 1, '[]', 'piece', 1, to_tsvector('simple', 'piece'), 'h' || p
FROM documents, generate_series(0, 99) p WHERE piece_count = 100;

INSERT INTO chunk_vectors (account_id, document_id, model, text_hash, embedding)
SELECT account_id, id, embedded_by, 'h' || p, CASE name
    WHEN 'Foreign' THEN (SELECT array_agg((e + (random() - 0.5) / 10)::real ORDER BY i)
        FROM near, unnest(embedding) WITH ORDINALITY u (e, i) WHERE id <> p::text)
    ELSE (SELECT array_agg(((random() - 0.5) / 2.3)::real) FROM generate_series(1, 64) WHERE id <> p::text) END
FROM documents, generate_series(0, 99) p WHERE piece_count = 100;

ANALYZE;
