DROP TRIGGER oauth_grants_disable_keys ON oauth_grants;
DROP FUNCTION disable_keys_of_grant();
ALTER TABLE api_keys DROP COLUMN grant_id;
