-- A call is written to two indexes instead of three: nobody looks for one by its id alone.
ALTER TABLE mcp_audit DROP CONSTRAINT mcp_audit_pkey, ADD PRIMARY KEY (account_id, timestamp_ms, id);
DROP INDEX mcp_audit_newest;
