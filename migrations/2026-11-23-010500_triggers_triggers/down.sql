DROP TABLE trigger_seen;
DROP TABLE trigger_events;
DROP TABLE trigger_counters;
DROP TABLE triggers;
