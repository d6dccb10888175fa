DELETE FROM signing_keys WHERE purpose = 'access-rs256';
ALTER TABLE signing_keys DROP CONSTRAINT signing_keys_purpose_check,
    ADD CONSTRAINT signing_keys_purpose_check CHECK (purpose IN ('session', 'access'));
