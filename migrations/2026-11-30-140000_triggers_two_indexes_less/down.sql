CREATE INDEX trigger_events_age ON trigger_events (received_ms);
CREATE INDEX trigger_seen_age ON trigger_seen (seen_ms);
