DROP TABLE log_ins;
DELETE FROM oauth_clients WHERE client_id = 'platform-console' AND account_id IS NULL;
