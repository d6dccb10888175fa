DROP TABLE mcp_audit;
DROP TABLE mcp_switches;
DROP TABLE mcp_grants;
DROP TABLE mcp_profiles;
