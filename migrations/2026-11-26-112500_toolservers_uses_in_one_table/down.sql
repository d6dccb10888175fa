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
    SELECT uses.account_id, target_id, user_kind || 's', user_id FROM uses
    JOIN tool_servers ON tool_servers.account_id = uses.account_id AND tool_servers.id = target_id
    WHERE target_kind = 'tool-server';

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

CREATE FUNCTION mirror_tool_server_use() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO uses (account_id, user_kind, user_id, target_kind, target_id)
            VALUES (NEW.account_id, rtrim(NEW.user_kind, 's'), NEW.user_id, 'tool-server', NEW.server_id)
            ON CONFLICT DO NOTHING;
    ELSE
        DELETE FROM uses WHERE account_id = OLD.account_id AND user_kind = rtrim(OLD.user_kind, 's')
            AND user_id = OLD.user_id AND target_kind = 'tool-server' AND target_id = OLD.server_id;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER tool_server_uses_mirror AFTER INSERT OR DELETE ON tool_server_uses
    FOR EACH ROW EXECUTE FUNCTION mirror_tool_server_use();
