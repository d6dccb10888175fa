-- An event is found among those of its trigger; few ever are, and each that comes in paid for it.
DROP INDEX trigger_events_event;
