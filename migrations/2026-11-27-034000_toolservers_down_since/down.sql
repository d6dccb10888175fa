ALTER TABLE tool_servers DROP COLUMN down_since_ms;
