-- A process says of what it has reserved that it still lives; what one that is silent reserved is given back.
ALTER TABLE usage_reservations ADD COLUMN seen_at timestamptz NOT NULL DEFAULT now();
