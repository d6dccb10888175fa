ALTER TABLE tool_servers DROP COLUMN guarded;
