ALTER TABLE triggers ADD COLUMN last_error jsonb;
