-- What an administrator had set for a tenant ('' as subtenant) or end user that was deleted, until the windows of those
-- rules end: whoever comes back comes back to it.
CREATE TABLE former_tenants (
    account_id text NOT NULL,
    tenant_id text NOT NULL,
    subtenant_id text NOT NULL,
    tier_id text,
    rules jsonb NOT NULL,
    until_ms bigint NOT NULL,
    PRIMARY KEY (account_id, tenant_id, subtenant_id)
);
CREATE INDEX former_tenants_end ON former_tenants (until_ms);

CREATE TRIGGER tiers_told AFTER INSERT OR UPDATE OR DELETE ON tiers
    FOR EACH ROW EXECUTE FUNCTION tell_change('tenant');
CREATE TRIGGER tenants_told AFTER UPDATE OF tier_id, rules ON tenants
    FOR EACH ROW EXECUTE FUNCTION tell_change('tenant');
CREATE TRIGGER tenants_gone AFTER DELETE ON tenants FOR EACH ROW EXECUTE FUNCTION tell_change('tenant');
CREATE TRIGGER subtenants_told AFTER UPDATE OF tier_id ON subtenants
    FOR EACH ROW EXECUTE FUNCTION tell_change('tenant');
CREATE TRIGGER subtenants_gone AFTER DELETE ON subtenants FOR EACH ROW EXECUTE FUNCTION tell_change('tenant');
