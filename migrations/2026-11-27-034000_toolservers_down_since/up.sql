-- For how long the tools of a server that does not answer are still shown is the same on every process.
ALTER TABLE tool_servers ADD COLUMN down_since_ms bigint;
UPDATE tool_servers SET down_since_ms = refreshed_ms WHERE health = 'down';
