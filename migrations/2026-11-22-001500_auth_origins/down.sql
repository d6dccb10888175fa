DROP TRIGGER oauth_grants_told ON oauth_grants;
DROP TRIGGER oauth_clients_told ON oauth_clients;
DROP TRIGGER users_told ON users;
DROP TRIGGER tenant_sessions_told ON tenant_sessions;
DROP TRIGGER api_keys_gone ON api_keys;
DROP TRIGGER api_keys_told ON api_keys;
ALTER TABLE tenant_sessions DROP COLUMN key_digest, DROP COLUMN user_id, DROP COLUMN grant_id;
ALTER TABLE api_keys ADD COLUMN old_digest text UNIQUE, ADD COLUMN old_digest_until_ms bigint;
UPDATE api_keys SET (old_digest, old_digest_until_ms) = (
    SELECT digest, until_ms FROM api_key_old_values WHERE key_id = api_keys.id ORDER BY until_ms DESC LIMIT 1);
DROP TABLE api_key_old_values;
ALTER TABLE api_keys DROP COLUMN user_id;
