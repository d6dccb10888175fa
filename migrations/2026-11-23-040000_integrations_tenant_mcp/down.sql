DROP TABLE tenant_mcp_servers;
