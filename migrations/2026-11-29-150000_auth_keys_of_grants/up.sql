-- The grant that a key was made with, through an application that is not the console: a grant that is revoked takes its keys
-- with it. One that is forgotten because nobody uses it any more leaves them, and the keys of a user who is disabled are good
-- again with them.
ALTER TABLE api_keys ADD COLUMN grant_id text;
CREATE INDEX api_keys_of_grant ON api_keys (grant_id) WHERE grant_id IS NOT NULL;
CREATE FUNCTION disable_keys_of_grant() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE api_keys SET disabled = true WHERE grant_id = NEW.id AND NOT disabled
        AND NOT EXISTS (SELECT FROM users WHERE id = NEW.user_id AND disabled);
    RETURN NULL;
END $$;
CREATE TRIGGER oauth_grants_disable_keys AFTER UPDATE OF revoked_ms ON oauth_grants
    FOR EACH ROW WHEN (NEW.revoked_ms IS NOT NULL) EXECUTE FUNCTION disable_keys_of_grant();
