-- A list that is searched looks for a part of the name or of the summary: with an index of one alone neither is used.
DO $$
BEGIN
    CREATE INDEX documents_summaries ON documents USING gin (summary gin_trgm_ops);
EXCEPTION WHEN OTHERS THEN
    RAISE NOTICE 'pg_trgm is not available: %', SQLERRM;
END
$$;
