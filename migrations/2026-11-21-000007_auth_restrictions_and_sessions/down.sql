DROP TABLE signing_keys;
DROP TABLE tenant_sessions;
ALTER TABLE api_keys
    DROP COLUMN project_ids,
    DROP COLUMN preset,
    DROP COLUMN allowed_endpoints,
    DROP COLUMN allowed_domains,
    DROP COLUMN identity_mode;
