-- Runs that are due are found by lane, or beside all lanes.
DROP INDEX IF EXISTS runs_due;
