-- The grant and the application that a key was made with, where that is not the console: it ends with them.
ALTER TABLE api_keys ADD COLUMN grant_id text, ADD COLUMN client_id text;
CREATE INDEX api_keys_of_grant ON api_keys (grant_id) WHERE grant_id IS NOT NULL;
CREATE INDEX api_keys_of_client ON api_keys (client_id) WHERE client_id IS NOT NULL;
