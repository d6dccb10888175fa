DROP INDEX IF EXISTS documents_summaries;
