CREATE INDEX trigger_events_event ON trigger_events (trigger_id, event_id, attempt DESC);
