-- Parts of the platform that have models called for nobody's turn.
ALTER TABLE costs DROP CONSTRAINT IF EXISTS tenant_costs_kind_check;
ALTER TABLE costs DROP CONSTRAINT IF EXISTS costs_kind_check;
ALTER TABLE costs ADD CONSTRAINT costs_kind_check CHECK (kind IN ('assistant', 'agent', 'external', 'service'));
