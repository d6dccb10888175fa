ALTER TABLE triggers DROP COLUMN last_error;
