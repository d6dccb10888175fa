-- Secrets before the previous one that still sign, as [{secret, replacedMs}], the newest first.
ALTER TABLE webhooks ADD COLUMN older_secrets jsonb NOT NULL DEFAULT '[]';
ALTER TABLE webhook_secrets ADD COLUMN older_secrets jsonb NOT NULL DEFAULT '[]';
