-- Secrets before the present one, as [{secret, replacedMs}], the newest first: each signs for a day after it was replaced,
-- however often that happens. previous_secret and rotated_ms stay for processes of the former version.
ALTER TABLE webhooks ADD COLUMN old_secrets jsonb NOT NULL DEFAULT '[]';
ALTER TABLE webhook_secrets ADD COLUMN old_secrets jsonb NOT NULL DEFAULT '[]';
UPDATE webhooks SET old_secrets = jsonb_build_array(jsonb_build_object('secret', previous_secret, 'replacedMs', rotated_ms))
    WHERE previous_secret IS NOT NULL AND rotated_ms IS NOT NULL;
UPDATE webhook_secrets SET old_secrets = jsonb_build_array(jsonb_build_object('secret', previous_secret, 'replacedMs', rotated_ms))
    WHERE previous_secret IS NOT NULL AND rotated_ms IS NOT NULL;
