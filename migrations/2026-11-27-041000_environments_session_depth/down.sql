ALTER TABLE sandbox_sessions DROP COLUMN depth;
