-- More work came for the subject of this run: it cannot end as the last one.
ALTER TABLE runs ADD COLUMN again boolean NOT NULL DEFAULT false;
