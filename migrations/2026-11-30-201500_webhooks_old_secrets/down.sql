ALTER TABLE webhook_secrets DROP COLUMN older_secrets;
ALTER TABLE webhooks DROP COLUMN older_secrets;
