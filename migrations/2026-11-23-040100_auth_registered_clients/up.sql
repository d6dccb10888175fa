-- Applications that register themselves belong to no account: their users say which.
ALTER TABLE oauth_clients ALTER COLUMN account_id DROP NOT NULL;
-- When one of them was last used, or its document last read.
ALTER TABLE oauth_clients ADD COLUMN used_ms bigint;
CREATE INDEX oauth_clients_unused ON oauth_clients (used_ms) WHERE account_id IS NULL;
-- They are known before their account is: users by address over all accounts.
CREATE INDEX users_address ON users (lower(email));
