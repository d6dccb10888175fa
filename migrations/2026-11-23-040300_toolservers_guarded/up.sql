-- Tools of an MCP server that went away, and whose calls wait for approval should they come again.
ALTER TABLE tool_servers ADD COLUMN guarded text[] NOT NULL DEFAULT '{}';
