-- What waits is counted by its runs.
DROP INDEX trigger_events_waiting;
