-- A file of a skill that is no text; and of what is in a file that is none, its digest.
ALTER TABLE documents DROP CONSTRAINT documents_file_type_check,
    ADD CONSTRAINT documents_file_type_check CHECK (file_type IN ('md', 'pdf', 'txt', 'docx', 'html', 'binary')),
    ADD COLUMN binary_hash text;
UPDATE documents d SET binary_hash = f.sha256 FROM files f
WHERE f.account_id = d.account_id AND f.id = d.source_file_id AND d.file_type IN ('pdf', 'docx');
