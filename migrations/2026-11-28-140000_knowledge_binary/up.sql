-- A file of a skill that is no text.
ALTER TABLE documents DROP CONSTRAINT documents_file_type_check,
    ADD CONSTRAINT documents_file_type_check CHECK (file_type IN ('md', 'pdf', 'txt', 'docx', 'html', 'binary'));
