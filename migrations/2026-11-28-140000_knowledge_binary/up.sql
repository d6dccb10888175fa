-- A file of a skill that is no text, and the digest of its bytes. What was there before satisfies the narrower rule.
ALTER TABLE documents DROP CONSTRAINT documents_file_type_check,
    ADD CONSTRAINT documents_file_type_check
        CHECK (file_type IN ('md', 'pdf', 'txt', 'docx', 'html', 'binary')) NOT VALID,
    ADD COLUMN binary_hash text;
