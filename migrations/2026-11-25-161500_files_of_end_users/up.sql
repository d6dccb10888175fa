-- What an end user has stored is summed at each of their uploads.
CREATE INDEX files_owner ON files (account_id, tenant_id, subtenant_id) INCLUDE (size) WHERE tenant_id IS NOT NULL;
