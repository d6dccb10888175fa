-- An event waits until it became deliveries.
ALTER TABLE events
    ADD COLUMN content jsonb,
    ADD COLUMN project_id text,
    ADD COLUMN depth smallint NOT NULL DEFAULT 0,
    ADD COLUMN routed boolean NOT NULL DEFAULT true;
ALTER TABLE events ALTER COLUMN routed SET DEFAULT false;
CREATE INDEX events_waiting ON events (id) WHERE NOT routed;
