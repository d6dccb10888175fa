DROP INDEX documents_source;
