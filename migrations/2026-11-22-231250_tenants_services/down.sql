DELETE FROM costs WHERE kind = 'service';
ALTER TABLE costs DROP CONSTRAINT costs_kind_check;
ALTER TABLE costs ADD CONSTRAINT costs_kind_check CHECK (kind IN ('assistant', 'agent', 'external'));
