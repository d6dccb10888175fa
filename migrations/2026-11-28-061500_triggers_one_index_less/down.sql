CREATE INDEX trigger_events_waiting ON trigger_events (account_id) WHERE outcome IS NULL;
