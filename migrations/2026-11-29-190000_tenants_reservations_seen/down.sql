ALTER TABLE usage_reservations DROP COLUMN seen_at;
