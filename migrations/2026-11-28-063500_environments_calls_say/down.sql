ALTER TABLE sandbox_calls DROP COLUMN said, DROP COLUMN heard;
