DROP TABLE tool_tokens, tool_server_uses, tool_servers;
