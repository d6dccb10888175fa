-- Who may read a file that is kept for a document is said by the document.
CREATE INDEX documents_source ON documents (account_id, source_file_id) WHERE source_file_id IS NOT NULL;
