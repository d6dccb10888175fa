-- What was kept for tool servers alone; the records that refer to one that is deleted are changed by their own crates.
LOCK TABLE tool_server_uses IN SHARE ROW EXCLUSIVE MODE;
INSERT INTO uses (account_id, user_kind, user_id, target_kind, target_id)
    SELECT account_id, rtrim(user_kind, 's'), user_id, 'tool-server', server_id FROM tool_server_uses;

-- Processes of the version before this one may still run, and write there; the old table goes with the next version.
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
