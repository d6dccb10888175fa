DROP TABLE oauth_refresh_tokens, oauth_grants, oauth_clients, users;
