-- No process writes here any more: who refers to what stands in `uses` alone.
DROP TABLE tool_server_uses;
DROP FUNCTION mirror_tool_server_use(), forget_tool_server(), forget_tool_server_of_agent();
