DROP TRIGGER subtenants_gone ON subtenants;
DROP TRIGGER subtenants_told ON subtenants;
DROP TRIGGER tenants_gone ON tenants;
DROP TRIGGER tenants_told ON tenants;
DROP TRIGGER tiers_told ON tiers;
DROP TABLE former_tenants;
