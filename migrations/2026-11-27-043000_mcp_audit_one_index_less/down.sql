ALTER TABLE mcp_audit DROP CONSTRAINT mcp_audit_pkey, ADD PRIMARY KEY (account_id, id);
CREATE INDEX mcp_audit_newest ON mcp_audit (account_id, timestamp_ms DESC, id DESC);
