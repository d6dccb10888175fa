DROP INDEX users_address;
DROP INDEX oauth_clients_unused;
DELETE FROM oauth_clients WHERE account_id IS NULL;
ALTER TABLE oauth_clients DROP COLUMN used_ms;
ALTER TABLE oauth_clients ALTER COLUMN account_id SET NOT NULL;
