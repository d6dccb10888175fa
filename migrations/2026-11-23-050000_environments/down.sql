DROP TABLE sandbox_calls;
DROP TABLE sandbox_commands;
DROP TABLE sandbox_sessions;
DROP TABLE sandbox_snapshots;
DROP TABLE environment_variables;
DROP TABLE environments;
ALTER TABLE uses DROP COLUMN created_ms;
