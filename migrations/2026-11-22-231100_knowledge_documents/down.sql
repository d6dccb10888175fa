DROP TABLE chunks;
DROP TABLE document_versions;
DROP TABLE document_texts;
DROP TABLE documents;
DROP TABLE folders;
