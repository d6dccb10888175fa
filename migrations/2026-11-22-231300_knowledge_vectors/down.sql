ALTER TABLE documents DROP COLUMN summary_of, DROP COLUMN piece_count, DROP COLUMN index_id, DROP COLUMN embedded_by;
DROP TABLE chunk_vectors;
ALTER TABLE chunks DROP COLUMN text_hash;
