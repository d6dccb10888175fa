CREATE TABLE tool_server_uses (
    account_id text NOT NULL,
    server_id text NOT NULL,
    user_kind text NOT NULL,
    user_id text NOT NULL,
    PRIMARY KEY (account_id, server_id, user_kind, user_id),
    FOREIGN KEY (account_id, server_id) REFERENCES tool_servers ON DELETE CASCADE
);
CREATE INDEX tool_server_uses_of ON tool_server_uses (account_id, user_kind, user_id);
INSERT INTO tool_server_uses (account_id, server_id, user_kind, user_id)
    SELECT account_id, target_id, user_kind || 's', user_id FROM uses WHERE target_kind = 'tool-server';
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
CREATE FUNCTION forget_tool_server_of_agent() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE agents SET version = version + 1,
        edited_ms = floor(extract(epoch FROM clock_timestamp()) * 1000), settings = jsonb_set(settings,
            '{assistantSpecialization,availableToolsGroupsUids}',
            (settings #> '{assistantSpecialization,availableToolsGroupsUids}') - OLD.server_id)
    WHERE account_id = OLD.account_id AND id = OLD.user_id
        AND settings #> '{assistantSpecialization,availableToolsGroupsUids}' ? OLD.server_id;
    INSERT INTO agent_versions SELECT account_id, id, version, settings FROM agents
        WHERE account_id = OLD.account_id AND id = OLD.user_id ON CONFLICT DO NOTHING;
    RETURN OLD;
END $$;
CREATE TRIGGER tool_server_uses_forget_of_agent AFTER DELETE ON tool_server_uses
    FOR EACH ROW WHEN (OLD.user_kind = 'agents') EXECUTE FUNCTION forget_tool_server_of_agent();
