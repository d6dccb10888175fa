DROP TRIGGER tool_server_uses_forget ON tool_server_uses;
DROP FUNCTION forget_tool_server();
ALTER TABLE chats DROP COLUMN open_calls;
