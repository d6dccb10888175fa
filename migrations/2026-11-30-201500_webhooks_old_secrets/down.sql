UPDATE webhooks SET previous_secret = old_secrets -> 0 ->> 'secret', rotated_ms = (old_secrets -> 0 ->> 'replacedMs')::bigint
    WHERE old_secrets <> '[]';
UPDATE webhook_secrets SET previous_secret = old_secrets -> 0 ->> 'secret', rotated_ms = (old_secrets -> 0 ->> 'replacedMs')::bigint
    WHERE old_secrets <> '[]';
ALTER TABLE webhook_secrets DROP COLUMN old_secrets;
ALTER TABLE webhooks DROP COLUMN old_secrets;
