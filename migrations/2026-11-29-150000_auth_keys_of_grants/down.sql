ALTER TABLE api_keys DROP COLUMN grant_id, DROP COLUMN client_id;
