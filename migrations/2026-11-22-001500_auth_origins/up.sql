-- The user behind a key: who made it, or made the key it was made with. It falls and shrinks with them. No foreign key:
-- a key whose user is gone is known, and opens nothing.
ALTER TABLE api_keys ADD COLUMN user_id text;
WITH RECURSIVE made AS (
    SELECT id, created_by AS user_id FROM api_keys WHERE created_by <> 'server' AND created_by NOT LIKE 'apikey:%'
    UNION ALL
    SELECT key.id, made.user_id FROM api_keys key JOIN made ON key.created_by = 'apikey:' || made.id
)
UPDATE api_keys SET user_id = made.user_id FROM made WHERE made.id = api_keys.id;

-- Values before rotations, each until the end of its grace.
CREATE TABLE api_key_old_values (
    digest text PRIMARY KEY,
    key_id text NOT NULL REFERENCES api_keys ON DELETE CASCADE,
    until_ms bigint NOT NULL
);
CREATE INDEX api_key_old_values_of_key ON api_key_old_values (key_id);
CREATE INDEX api_key_old_values_end ON api_key_old_values (until_ms);
INSERT INTO api_key_old_values (digest, key_id, until_ms)
SELECT old_digest, id, old_digest_until_ms FROM api_keys WHERE old_digest IS NOT NULL AND old_digest_until_ms IS NOT NULL;
ALTER TABLE api_keys DROP COLUMN old_digest, DROP COLUMN old_digest_until_ms;

-- What a session follows from beside its key: the value that minted it, or the user and the grant of an application.
ALTER TABLE tenant_sessions ADD COLUMN key_digest text, ADD COLUMN user_id text, ADD COLUMN grant_id text;
UPDATE tenant_sessions SET key_digest = key.digest FROM api_keys key WHERE key.id = tenant_sessions.api_key_id;
UPDATE tenant_sessions SET user_id = split_part(api_key_id, '|', 2) WHERE api_key_id LIKE 'oauth|%';

CREATE TRIGGER api_keys_told AFTER UPDATE OF digest, disabled, expires_at_ms, identity_mode, allowed_domains,
    allowed_endpoints, preset, project_ids, user_id ON api_keys
    FOR EACH ROW EXECUTE FUNCTION tell_change('credential');
CREATE TRIGGER api_keys_gone AFTER DELETE ON api_keys FOR EACH ROW EXECUTE FUNCTION tell_change('credential');
CREATE TRIGGER tenant_sessions_told AFTER UPDATE OF revoked_ms, expires_ms ON tenant_sessions
    FOR EACH ROW EXECUTE FUNCTION tell_change('credential');
CREATE TRIGGER users_told AFTER UPDATE OR DELETE ON users FOR EACH ROW EXECUTE FUNCTION tell_change('credential');
CREATE TRIGGER oauth_clients_told AFTER UPDATE OR DELETE ON oauth_clients
    FOR EACH ROW EXECUTE FUNCTION tell_change('credential');
CREATE TRIGGER oauth_grants_told AFTER UPDATE OF revoked_ms ON oauth_grants
    FOR EACH ROW EXECUTE FUNCTION tell_change('credential');
