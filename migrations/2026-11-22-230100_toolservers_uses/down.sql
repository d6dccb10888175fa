DROP TRIGGER tool_server_uses_mirror ON tool_server_uses;
DROP FUNCTION mirror_tool_server_use();
INSERT INTO tool_server_uses (account_id, server_id, user_kind, user_id)
    SELECT account_id, target_id, user_kind || 's', user_id FROM uses WHERE target_kind = 'tool-server'
    ON CONFLICT DO NOTHING;
DELETE FROM uses WHERE target_kind = 'tool-server';
