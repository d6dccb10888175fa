-- What is old is looked for once an hour, among the events of each trigger; each that comes in paid for its age.
DROP INDEX trigger_events_age;
DROP INDEX trigger_seen_age;
