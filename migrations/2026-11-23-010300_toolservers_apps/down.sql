DROP INDEX tool_servers_connection;
ALTER TABLE tool_servers DROP COLUMN app;
