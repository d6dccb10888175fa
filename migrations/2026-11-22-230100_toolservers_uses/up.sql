-- What was kept for tool servers alone; the records that refer to one that is deleted are changed by their own crates.
INSERT INTO uses (account_id, user_kind, user_id, target_kind, target_id)
    SELECT account_id, rtrim(user_kind, 's'), user_id, 'tool-server', server_id FROM tool_server_uses;
DROP TABLE tool_server_uses;
DROP FUNCTION forget_tool_server();
DROP FUNCTION forget_tool_server_of_agent();
