-- Tool calls of the newest answer that have no stored result yet, and how far each is.
ALTER TABLE chats ADD COLUMN open_calls json;

-- A tool server that is deleted with force leaves the assistants that refer to it.
CREATE FUNCTION forget_tool_server() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE assistants SET version = version + 1,
        edited_ms = floor(extract(epoch FROM clock_timestamp()) * 1000), settings = jsonb_set(settings, '{availableToolsGroupsUids}',
        (settings -> 'availableToolsGroupsUids') - OLD.server_id)
    WHERE account_id = OLD.account_id AND id = OLD.user_id
        AND settings -> 'availableToolsGroupsUids' ? OLD.server_id;
    RETURN OLD;
END $$;
CREATE TRIGGER tool_server_uses_forget AFTER DELETE ON tool_server_uses
    FOR EACH ROW WHEN (OLD.user_kind = 'assistants') EXECUTE FUNCTION forget_tool_server();
