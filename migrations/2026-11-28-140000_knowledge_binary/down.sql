UPDATE documents SET file_type = 'txt' WHERE file_type = 'binary';
ALTER TABLE documents DROP COLUMN binary_hash, DROP CONSTRAINT documents_file_type_check,
    ADD CONSTRAINT documents_file_type_check CHECK (file_type IN ('md', 'pdf', 'txt', 'docx', 'html'));
