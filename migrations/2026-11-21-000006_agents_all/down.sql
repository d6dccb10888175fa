DROP TRIGGER tool_server_uses_forget_of_agent ON tool_server_uses;
DROP FUNCTION forget_tool_server_of_agent;
DROP TABLE evaluations;
DROP TABLE agent_costs;
DROP TABLE tool_callbacks;
DROP TABLE threads;
DROP TABLE agent_versions;
DROP TABLE agents;
