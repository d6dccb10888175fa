DROP INDEX events_waiting;
ALTER TABLE events DROP COLUMN routed, DROP COLUMN depth, DROP COLUMN project_id, DROP COLUMN content;
