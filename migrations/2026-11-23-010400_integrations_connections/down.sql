DROP TABLE connection_attempts;
DROP TABLE app_credentials;
DROP TABLE connections;
